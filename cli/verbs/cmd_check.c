#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <deltawire/stream.h>

#include "base/clock.h"
#include "base/error.h"
#include "check_store.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "stream_info.h"
#include "stream_open.h"

#define DEADLINE_MS 20000 /* of each request, if no --timeout is given */
#define MAX_BYTES   ((uint64_t)1 << 30)
#define TEXT_SIZE   (DW_ERROR_WHERE_SIZE + DW_ERROR_TEXT_SIZE)

typedef struct arguments {
    cli_stream stream; /* of its url, how to reach it and whom to trust */
    uint64_t n_bytes;
} arguments;

/* What one of them would do here. */
typedef struct verdict {
    bool can;
    char text[TEXT_SIZE];
} verdict;

static const struct {
    const char *label, *name, *works, *rights;
} steps[CHECK_STEPS] = {
    [CHECK_LIST] = {"list", "list", "works", "list"},
    [CHECK_READ] = {"read", "read", "works", "read"},
    [CHECK_RANGE] = {"range", "range", "works", "read"},
    [CHECK_WRITE] = {"write", "write", "works", "write"},
    [CHECK_DELETE] = {"delete", "delete", "works", "delete below probe/"},
    [CHECK_CREATE] = {"create", "create_once", "once: of two writers at once one won",
                      "create"},
    [CHECK_UPLOAD] = {"upload", "upload", NULL, "write"},
    [CHECK_DOWNLOAD] = {"download", "download", NULL, "read"},
};

/* ---- judging ---- */

static void say(verdict *v, bool can, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(verdict *v, bool can, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    v->can = can;
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

/* The first of STEPS that fails or, of CHECK_LIST, was not tried; CHECK_STEPS: none. */
static check_step first_fault(const check_findings *f, const check_step *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (f->steps[wanted[i]].err.code != DW_OK)
            return wanted[i];
    return CHECK_STEPS;
}

static void say_fault(verdict *v, const check_findings *f, check_step fault)
{
    const bool denied = f->steps[fault].err.code == DW_DENIED;
    say(v, false,
        denied ? "cannot work here: it may not %s" : "cannot work here: %s fails",
        denied ? steps[fault].rights : steps[fault].label);
}

static void judge_publisher(verdict *v, const check_findings *f, const char *id,
                            uint64_t head)
{
    static const check_step needed[] = {CHECK_LIST,    CHECK_READ,   CHECK_RANGE,
                                        CHECK_WRITE,   CHECK_DELETE, CHECK_UPLOAD,
                                        CHECK_DOWNLOAD};
    const check_step fault = first_fault(f, needed, sizeof needed / sizeof *needed);
    const check_result *create = &f->steps[CHECK_CREATE];
    const char *single =
        create->err.code == DW_UNSUPPORTED
            ? "; create-once does not work: publish needs --single-writer"
            : "";
    if (fault != CHECK_STEPS)
        say_fault(v, f, fault);
    else if (create->err.code != DW_OK && !*single)
        say_fault(v, f, CHECK_CREATE);
    else if (f->facts.absent && !f->facts.may_make)
        say(v, false, "cannot work here: it may not make the directory");
    else if (f->facts.absent)
        say(v, true, "would make the directory and begin a new stream");
    else if (!id)
        say(v, true, "can write here: would begin a new stream%s", single);
    else if (head == DW_NO_VERSION)
        say(v, true, "can write here: would write the first version of stream %s%s", id,
            single);
    else
        say(v, true,
            "can write here: would continue stream %s after version %" PRIu64 "%s", id,
            head, single);
}

static void judge_follower(verdict *v, const check_findings *f, dw_stream *stream,
                           uint64_t head)
{
    static const check_step needed[] = {CHECK_LIST, CHECK_READ, CHECK_RANGE,
                                        CHECK_DOWNLOAD};
    char size[CLI_NUMBER_SIZE];
    const check_step fault = first_fault(f, needed, sizeof needed / sizeof *needed);
    const char *quiet =
        f->steps[CHECK_WRITE].err.code == DW_DENIED
            ? "; if it may not write followers/ either: follow --no-report"
            : "";
    if (fault != CHECK_STEPS)
        say_fault(v, f, fault);
    else if (!stream || head == DW_NO_VERSION)
        say(v, true, "can read here: would wait for the first version%s", quiet);
    else
        say(v, true, "can read here: would fetch version %" PRIu64 " of a model of %s%s",
            head, cli_format_size(size, cli_model_count(stream).n_bytes), quiet);
}

/* The error that the exit code is of, if neither can work. */
static const dw_error *worst(const check_findings *f, const dw_error *stream_fault)
{
    for (size_t i = 0; i < CHECK_STEPS; i++)
        if (f->steps[i].err.code != DW_OK)
            return &f->steps[i].err;
    return stream_fault;
}

/* ---- printing ---- */

static void print_step(const check_findings *f, check_step step)
{
    const check_result *r = &f->steps[step];
    char text[DW_ERROR_TEXT_SIZE], size[CLI_NUMBER_SIZE], rate[CLI_NUMBER_SIZE];
    if (!r->tried)
        return;
    if (r->err.code != DW_OK) {
        printf("  %-10s %s: ", steps[step].label,
               r->err.code == DW_DENIED ? "denied" : "FAILS");
        cli_print_text(stdout, r->err.where);
        fputs(r->err.where[0] ? ": " : "", stdout);
        cli_print_line(cli_text_with_flags(text, r->err.text));
    } else if (steps[step].works)
        cli_print_row(steps[step].label, "%s", steps[step].works);
    else
        cli_print_row(
            steps[step].label, "%s, %s/s", cli_format_size(size, r->n_bytes),
            cli_format_size(rate, (uint64_t)cli_ratio((double)r->n_bytes, r->seconds)));
}

static void print_keys(const dw_store_facts *facts)
{
    char until[DW_TIME_TEXT], left[CLI_AGE_SIZE], text[TEXT_SIZE];
    const char *known = facts->keys[0]     ? facts->keys
                        : facts->server[0] ? "none yet"
                                           : "not known";
    snprintf(text, sizeof text, "%s%s%s%s%s%s", known, facts->place[0] ? ", from " : "",
             facts->place, facts->key_end[0] ? " (..." : "", facts->key_end,
             facts->key_end[0] ? ")" : "");
    if (facts->server[0])
        cli_print_text_row("server", facts->server);
    cli_print_text_row("keys", text);
    if (facts->keys_expire_ms == 0)
        return;
    dw_time_format(until, facts->keys_expire_ms);
    const double seconds = 1e-3 * (double)(facts->keys_expire_ms - dw_wall_clock_ms());
    cli_print_row("valid", "until %s, %s%s; renewed before", until,
                  seconds < 0 ? "expired by this clock" : "for ",
                  seconds < 0 ? "" : cli_format_age(left, seconds));
}

static void print_clock(const dw_store_facts *facts)
{
    char text[CLI_AGE_SIZE];
    const double off = 1e-3 * (double)facts->clock_offset_ms;
    if (facts->has_clock && fabs(off) < 2)
        cli_print_row("clock", "as here, within 2 s");
    else if (facts->has_clock)
        cli_print_row("clock", "%s %s of this machine", cli_format_age(text, fabs(off)),
                      off > 0 ? "ahead" : "behind");
}

static void print_text(const check_findings *f, const char *url, const verdict *publisher,
                       const verdict *follower)
{
    cli_print_line(url);
    print_keys(&f->facts);
    if (f->facts.absent)
        cli_print_row("directory", "is not there; if it is a mount, mount it first");
    for (check_step step = 0; step < CHECK_STEPS; step++)
        print_step(f, step);
    if (f->left) /* its key is ours */
        cli_print_row("left over", "%s: remove it", f->left);
    if (f->round_trip >= 1e-4)
        cli_print_row("round trip", "%.1f ms", 1e3 * f->round_trip);
    print_clock(&f->facts);
    cli_print_text_row("publisher", publisher->text);
    cli_print_text_row("follower", follower->text);
}

static json_t *step_json(const check_result *r)
{
    if (!r->tried)
        return json_null();
    json_t *object = json_object();
    cli_json_flag(object, "ok", r->err.code == DW_OK);
    if (r->err.code != DW_OK)
        json_object_set_new(object, "error", cli_json_error(&r->err));
    if (r->n_bytes > 0) {
        cli_json_count(object, "bytes", r->n_bytes);
        cli_json_real(object, "seconds", r->seconds);
    }
    return object;
}

static void add_verdict(json_t *object, const char *name, const verdict *v)
{
    json_t *row = json_object();
    cli_json_flag(row, "ok", v->can);
    cli_json_text(row, "text", v->text);
    json_object_set_new(object, name, row);
}

static void print_json(const check_findings *f, const char *url, const char *id,
                       uint64_t head, const verdict *publisher, const verdict *follower)
{
    char until[DW_TIME_TEXT] = "";
    const dw_store_facts *facts = &f->facts;
    json_t *object = json_object(), *keys = json_object();
    cli_json_text(object, "url", url);
    cli_json_text(object, "server", facts->server);
    cli_json_text(keys, "source", facts->keys);
    cli_json_text(keys, "place", facts->place);
    cli_json_text(keys, "key_end", facts->key_end);
    if (facts->keys_expire_ms != 0)
        dw_time_format(until, facts->keys_expire_ms);
    json_object_set_new(keys, "expires", until[0] ? json_string(until) : json_null());
    json_object_set_new(object, "keys", keys);
    for (check_step step = 0; step < CHECK_STEPS; step++)
        json_object_set_new(object, steps[step].name, step_json(&f->steps[step]));
    json_object_set_new(object, "left_over",
                        f->left ? json_string(f->left) : json_null());
    cli_json_real(object, "round_trip_seconds", f->round_trip);
    cli_json_real(object, "clock_offset_seconds",
                  facts->has_clock ? 1e-3 * (double)facts->clock_offset_ms : NAN);
    json_object_set_new(object, "stream", id ? json_string(id) : json_null());
    cli_json_version(object, "head", head);
    add_verdict(object, "publisher", publisher);
    add_verdict(object, "follower", follower);
    cli_json_print(object);
}

/* ---- the verb ---- */

/* Opens the stream, if there is one. A stream that cannot be opened is nobody's. */
static dw_status look(cli_stream *stream, uint64_t *head, dw_error *err)
{
    const char *system;
    const dw_trust trust = cli_keys_trust(&stream->keys);
    dw_status status = dw_stream_open(&stream->stream, stream->store, &trust, err);
    if (status == DW_NOT_FOUND && cli_is_foreign(stream->store, &system))
        return dw_fail(err, DW_UNSUPPORTED, stream->url,
                       "these are versions of %s, not a deltawire stream", system);
    if (status == DW_OK)
        status = dw_stream_head(stream->stream, head, err);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static int report(cli_session *s, arguments *a, const check_findings *f)
{
    verdict publisher, follower;
    dw_error fault = {0};
    uint64_t head = DW_NO_VERSION;
    if (f->steps[CHECK_READ].tried && f->steps[CHECK_READ].err.code == DW_OK)
        look(&a->stream, &head, &fault);
    const char *id = a->stream.stream ? dw_stream_id(a->stream.stream) : NULL;
    judge_publisher(&publisher, f, id, head);
    judge_follower(&follower, f, a->stream.stream, head);
    if (fault.code != DW_OK && fault.code != DW_NOT_FOUND) {
        say(&publisher, false, "cannot work here: %s", fault.text);
        follower = publisher;
    }
    if (s->json)
        print_json(f, a->stream.url, id, head, &publisher, &follower);
    else
        print_text(f, a->stream.url, &publisher, &follower);
    const dw_error *err = worst(f, &fault);
    return publisher.can || follower.can ? 0 : cli_exit_code(err->code);
}

static int run(cli_session *s)
{
    arguments a = {.n_bytes = 8000000};
    check_findings f = {0};
    dw_error err;
    cli_parse(s, &a);
    if (a.n_bytes > MAX_BYTES)
        cli_usage_error(s, "--size: at most 1 GiB");
    a.stream.url = s->args[0];
    if (a.stream.options.deadline_ms == 0)
        a.stream.options.deadline_ms = DEADLINE_MS;
    int exit_code = cli_keys_load(&a.stream.keys, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&a.stream.store, s, a.stream.url, &a.stream.options);
    if (exit_code == 0)
        exit_code = check_store(&f, a.stream.store, a.n_bytes, &err) == DW_OK
                        ? report(s, &a, &f)
                        : cli_fail(s, &err, a.stream.url, NULL);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(SIZE, arguments, n_bytes, "size", "BYTES",
                "move at most so much to measure the rate (8M)")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_check = {
    .name = "check",
    .summary = "say whether a store works, and with which keys",
    .usage = "URL [--size BYTES] [OPTION...]",
    .about =
        "Says which credentials are used, from where and until when; whether list, read, "
        "write, delete and create-once work (two writers at once, one wins); how the "
        "server's clock differs; the round trip and the rate. Ends with what a publisher "
        "and a follower would do here. It fails if neither could work.\n"
        "It writes only below probe/, and removes what it wrote. So a stream may be in "
        "use. It retries for 20 seconds, if --timeout does not say otherwise.",
    .examples = "  deltawire check s3://bucket/run-7\n"
                "  deltawire check s3://bucket/run-7 --json | jq .publisher.text\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
