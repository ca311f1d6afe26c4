#include "trouble.h"

#include <stdio.h>
#include <string.h>

#include "json.h"
#include "print.h"
#include "progress.h"

#define T_FIRST 1.0 /* seconds */
#define T_MOST  60.0

void cli_tell_error(const cli_session *s, const char *event, const char *fallback,
                    const dw_error *err)
{
    const char *where = err->where[0] ? err->where : fallback;
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", event);
        cli_json_text(object, "code", dw_status_name(err->code));
        cli_json_text(object, "where", where);
        cli_json_text(object, "text", err->text);
        cli_json_event(object);
        return;
    }
    fputs("deltawire: ", stderr);
    cli_print_text(stderr, where);
    fputs(": ", stderr);
    cli_print_text(stderr, err->text);
    fputc('\n', stderr);
}

/* Whether two texts say the same, but for numbers: a count or an age may grow. */
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

void cli_trouble_add(cli_trouble *trouble, const cli_session *s, const dw_error *err)
{
    const bool is_new = trouble->n_tries == 0 || trouble->told.code != err->code ||
                        strcmp(trouble->told.where, err->where) != 0 ||
                        !is_same_text(trouble->told.text, err->text);
    trouble->n_tries++;
    if (!is_new)
        return;
    trouble->told = *err;
    cli_tell_error(s, "error", trouble->what, err);
    if (!s->json && !s->quiet)
        fputs("trying again until it works\n", stderr);
}

double cli_trouble_wait(const cli_trouble *trouble)
{
    const bool is_set = trouble->longest > 0 && trouble->longest < T_MOST;
    const double most = is_set ? trouble->longest : T_MOST;
    double seconds = T_FIRST;
    for (unsigned i = 1; i < trouble->n_tries && seconds < most; i++)
        seconds *= 2;
    return seconds < most ? seconds : most;
}

void cli_trouble_sleep(const cli_trouble *trouble)
{
    cli_sleep(cli_trouble_wait(trouble));
}

void cli_trouble_end(cli_trouble *trouble, const cli_session *s)
{
    if (trouble->n_tries > 0 && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "recovered");
        cli_json_count(object, "tries", trouble->n_tries);
        cli_json_event(object);
    } else if (trouble->n_tries > 0 && !s->quiet) {
        fputs("deltawire: ", stderr);
        cli_print_text(stderr, trouble->what);
        fprintf(stderr, ": works again after %u %s\n", trouble->n_tries,
                trouble->n_tries == 1 ? "try" : "tries");
    }
    trouble->n_tries = 0;
}
