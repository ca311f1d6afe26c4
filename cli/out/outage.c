#include "outage.h"

#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"

#define T_FIRST 1.0 /* seconds */
#define T_MOST  60.0

void cli_report_error(const cli_session *s, const char *event, const char *fallback,
                      const dw_error *err)
{
    const char *where = err->where[0] ? err->where : fallback;
    char text[DW_ERROR_TEXT_SIZE];
    cli_text_with_flags(text, err->text);
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", event);
        cli_json_text(object, "code", dw_status_name(err->code));
        cli_json_text(object, "where", where);
        cli_json_text(object, "text", text);
        cli_json_event(object);
        return;
    }
    cli_print_message(where, "%s", text);
}

/* Whether two texts are the same except for numbers: a count or an age may grow. */
static bool is_same_text(const char *a, const char *b)
{
    static const char digits[] = "0123456789";
    while (*a && *b) {
        a += strspn(a, digits);
        b += strspn(b, digits);
        if (*a != *b)
            return false;
        if (*a) {
            a++;
            b++;
        }
    }
    a += strspn(a, digits);
    b += strspn(b, digits);
    return *a == *b;
}

void cli_outage_add(cli_outage *outage, const cli_session *s, const dw_error *err)
{
    const bool is_new = outage->n_tries == 0 || outage->reported.code != err->code ||
                        strcmp(outage->reported.where, err->where) != 0 ||
                        !is_same_text(outage->reported.text, err->text);
    outage->n_tries++;
    if (!is_new)
        return;
    outage->reported = *err;
    cli_report_error(s, "error", outage->subject, err);
    if (!s->json && !s->quiet)
        fputs("trying again until it works\n", stderr);
}

double cli_outage_wait(const cli_outage *outage)
{
    const bool is_set = outage->max_wait > 0 && outage->max_wait < T_MOST;
    const double most = is_set ? outage->max_wait : T_MOST;
    double seconds = T_FIRST;
    for (unsigned i = 1; i < outage->n_tries && seconds < most; i++)
        seconds *= 2;
    return seconds < most ? seconds : most;
}

void cli_outage_sleep(const cli_outage *outage)
{
    cli_sleep(cli_outage_wait(outage));
}

void cli_outage_end(cli_outage *outage, const cli_session *s)
{
    if (outage->n_tries > 0 && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "recovered");
        cli_json_count(object, "tries", outage->n_tries);
        cli_json_event(object);
    } else if (outage->n_tries > 0 && !s->quiet) {
        cli_print_message(outage->subject, "works again after %u %s", outage->n_tries,
                          outage->n_tries == 1 ? "try" : "tries");
    }
    outage->n_tries = 0;
}
