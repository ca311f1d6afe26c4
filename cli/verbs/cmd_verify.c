#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <deltawire/deltawire.h>

#include "base/error.h"
#include "base/mem.h"
#include "checkpoint_read.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "sha256.h"
#include "stream_open.h"
#include "verify_stream.h"
#include "inner.h"
#include "weights/position.h"

/* The checkpoint's version, relative to the delta. */
typedef enum standing {
    NO_DELTA,
    AT_BASE,
    AT_NEW,
    FITS, /* the delta names no digests, but decodes */
} standing;

typedef struct findings {
    standing standing;
    dw_digest state;
    dw_delta_info delta;
    dw_position held;            /* what its record says; no version if it has none */
    size_t n_files;              /* companion files that were installed */
    cli_verify_faults faults;    /* of these */
    char sha256[DW_SHA256_TEXT]; /* empty if not asked for */
} findings;

/* Decodes the delta against the weights. This checks all of it. If the weights are not
 * its base, the error names the first tensor that differs. */
static dw_status check_decodes(const dw_delta *delta, const cli_weights *weights,
                               const dw_digest *digests, const cli_session *s,
                               dw_error *err)
{
    cli_progress bar = cli_progress_start(s, "decoding");
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = s->n_threads;
    options.base_digests = digests;
    options.progress = cli_progress_hook(&bar);
    dw_status status =
        dw_delta_verify(delta, weights->tensors, weights->n_tensors, &options, err);
    cli_progress_end(&bar);
    return status;
}

static dw_status compare(findings *f, const dw_delta *delta, const cli_weights *weights,
                         const dw_digest *digests, const cli_session *s, dw_error *err)
{
    dw_delta_get_info(delta, &f->delta);
    if (f->delta.has_digests && f->state == f->delta.new_state &&
        f->state != f->delta.base_state) {
        f->standing = AT_NEW;
        return DW_OK;
    }
    f->standing = f->delta.has_digests ? AT_BASE : FITS;
    return check_decodes(delta, weights, digests, s, err);
}

static void print_findings(const findings *f, const char *path, const cli_session *s)
{
    static const char *const names[] = {"", "base", "new", "fits"};
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "checkpoint", path);
        cli_json_digest(object, "state", f->state);
        if (f->sha256[0])
            cli_json_text(object, "sha256", f->sha256);
        if (f->held.version != DW_NO_VERSION) {
            cli_json_text(object, "stream", f->held.stream);
            cli_json_count(object, "version", f->held.version);
        }
        if (f->n_files > 0) {
            cli_json_count(object, "files", f->n_files);
            json_object_set(object, "faults", f->faults.list);
        }
        if (f->standing != NO_DELTA) {
            cli_json_text(object, "standing", names[f->standing]);
            cli_json_count(object, "base_version", f->delta.base_version);
            cli_json_count(object, "new_version", f->delta.new_version);
        }
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    cli_print_line(path);
    cli_print_row("state", "%016" PRIx64, f->state);
    if (f->sha256[0])
        cli_print_row("SHA-256", "%s", f->sha256);
    if (f->held.version != DW_NO_VERSION)
        cli_print_row("holds", "version %" PRIu64 " of stream %s", f->held.version,
                      f->held.stream);
    if (f->n_files > 0)
        cli_print_row("files", "%zu", f->n_files);
    if (f->standing == AT_BASE)
        cli_print_row("version",
                      "%" PRIu64
                      ", where the delta starts; it decodes to version %" PRIu64,
                      f->delta.base_version, f->delta.new_version);
    else if (f->standing == AT_NEW)
        cli_print_row("version", "%" PRIu64 ", where the delta leads",
                      f->delta.new_version);
    else if (f->standing == FITS)
        cli_print_row("version", "unknown: the delta fits, but names no digests");
}

/* Reads the record of a directory that follows a stream: the version that it holds, and
 * the one that an update leads to. */
static dw_status read_held(dw_position *at, dw_position *next, const char *path,
                           dw_error *err)
{
    struct stat found;
    dw_record_kind kind;
    *at = *next = dw_nowhere;
    if (stat(path, &found) != 0 || !S_ISDIR(found.st_mode))
        return DW_OK;
    dw_status status = dw_position_read(at, next, &kind, path, err);
    if (status == DW_OK && kind == DW_RECORD_DAMAGED)
        status = dw_fail(err, DW_CORRUPT, path,
                         "the record of its version is damaged: a pull repairs it");
    return status;
}

/* The weights must agree with the record. */
static dw_status check_held(findings *f, const char *path, dw_error *err)
{
    dw_position next;
    dw_status status = read_held(&f->held, &next, path, err);
    if (next.version != DW_NO_VERSION && next.state == f->state)
        f->held = next; /* only the record is behind */
    if (status != DW_OK || f->held.version == DW_NO_VERSION || f->held.state == f->state)
        return status;
    return dw_fail(err, DW_CORRUPT, path,
                   "the weights (state %016" PRIx64 ") are not version %" PRIu64
                   " of stream %s (state %016" PRIx64
                   "), which this directory says it holds: a pull repairs it",
                   f->state, f->held.version, f->held.stream, f->held.state);
}

#define N_TRIES 5 /* if a follower writes what is read */

/* The user's request for a checkpoint. */
typedef struct question {
    const cli_session *session;
    const char *delta_path; /* or NULL */
    const dw_delta *delta;  /* or NULL */
    bool with_sha256;
} question;

static dw_status examine(findings *f, const char *path, const cli_weights *weights,
                         const question *q, dw_error *err)
{
    const cli_session *s = q->session;
    *f = (findings){0};
    dw_digest *digests = calloc(weights->n_tensors + 1, sizeof *digests);
    dw_status status = digests ? cli_weights_digest(digests, &f->state, weights, s, err)
                               : dw_fail_memory(err, path);
    if (status == DW_OK)
        status = check_held(f, path, err);
    if (status == DW_OK && q->delta)
        status = compare(f, q->delta, weights, digests, s, err);
    if (status == DW_OK && q->with_sha256)
        status = cli_sha256_weights(f->sha256, weights, s, err);
    free(digests);
    return status;
}

/* Looks at the companion files that were installed beside good weights, and prints
 * everything. Returns the exit code. */
static int conclude(findings *f, const char *path, const cli_session *s)
{
    dw_error err;
    cli_progress no_bar = {0};
    f->faults =
        (cli_verify_faults){.bar = &no_bar, .list = s->json ? json_array() : NULL};
    dw_status status = DW_OK;
    if (f->held.version != DW_NO_VERSION)
        status =
            dw_companions_check(path, cli_verify_fault, &f->faults, &f->n_files, &err);
    if (status == DW_OK)
        print_findings(f, path, s);
    const uint64_t n_faults = f->faults.n;
    json_decref(f->faults.list);
    if (status == DW_OK && n_faults == 0)
        return 0;
    if (status == DW_OK && s->json)
        return cli_exit_code(f->faults.first.code);
    if (status == DW_OK)
        dw_fail(&err, f->faults.first.code, path,
                n_faults == 1 ? "%" PRIu64 " companion file is not as installed: %.900s"
                              : "%" PRIu64
                                " companion files are not as installed, %.900s and "
                                "others: the list on stdout has all",
                n_faults, f->faults.first.where);
    return cli_fail(s, &err, path, NULL);
}

/* Whether a follower is writing the directory, or wrote it since its record was BEFORE.
 */
static bool is_in_work(const char *path, const dw_position *before)
{
    bool pending = false;
    dw_position now, next;
    dw_error err;
    return dw_checkpoint_pending(path, &pending, &err) == DW_OK &&
           read_held(&now, &next, path, &err) == DW_OK &&
           (pending || !dw_position_same(&now, before));
}

static int fail_in_work(const cli_session *s, const char *path)
{
    return cli_fail_as(s, "interrupted", path,
                       "it was written while it was read, or an apply to it was "
                       "interrupted",
                       "try again; if no follower is running, start one");
}

/* Examines the weights once. *AGAIN: a follower wrote them meanwhile. */
static int try_checkpoint(bool *again, const char *path, const question *q)
{
    dw_error err;
    findings f = {0};
    dw_position before, next;
    cli_weights weights;
    *again = false;
    if (read_held(&before, &next, path, &err) != DW_OK)
        return cli_fail(q->session, &err, path, NULL);
    int exit_code = cli_weights_open(&weights, q->session, path);
    if (exit_code == 0) {
        if (examine(&f, path, &weights, q, &err) == DW_OK)
            exit_code = conclude(&f, path, q->session);
        else if (before.version != DW_NO_VERSION && is_in_work(path, &before))
            *again = true;
        else
            exit_code =
                cli_fail(q->session, &err, q->delta_path ? q->delta_path : path, NULL);
    }
    cli_weights_close(&weights);
    return exit_code;
}

static int verify_checkpoint(const char *path, const question *q)
{
    bool again = true;
    int exit_code = 0;
    for (int i = 0; again && i < N_TRIES; i++)
        exit_code = try_checkpoint(&again, path, q);
    return again ? fail_in_work(q->session, path) : exit_code;
}

typedef struct arguments {
    bool with_sha256;
    cli_verify_options verify;
    cli_stream stream;
} arguments;

static const cli_option options[] = {
    {CLI_OPTION(FLAG, arguments, with_sha256, "sha256", NULL,
                "also SHA-256 over all tensor bytes in order of their names")},
    {CLI_GROUP("own", arguments, verify, cli_verify_options, cli_verify_rows)},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

static int run(cli_session *s)
{
    arguments a = {0};
    cli_parse(s, &a);
    const char *path = s->args[0];
    const char *delta_path = s->n_args == 2 ? s->args[1] : NULL;
    if (cli_is_stream(path)) {
        if (delta_path || a.with_sha256)
            cli_usage_error(s, "%s is a stream: DELTA and --sha256 are for checkpoints",
                            path);
        a.stream.url = path;
        return cli_verify_stream(&a.stream, s, &a.verify);
    }
    if (cli_any_given(options + 1, &a))
        cli_usage_error(s,
                        "%s is no stream: --trust, --base, --no-decode, --work, "
                        "--endpoint, --region, --profile and --timeout are for streams",
                        path);
    dw_delta *delta = NULL;
    dw_error err;
    if (delta_path && dw_delta_open(&delta, delta_path, &err) != DW_OK)
        return cli_fail(s, &err, delta_path, NULL);
    const question q = {s, delta_path, delta, a.with_sha256};
    int exit_code = verify_checkpoint(path, &q);
    dw_delta_close(delta);
    return exit_code;
}

const cli_verb cli_verb_verify = {
    .name = "verify",
    .summary = "check a checkpoint, or a whole stream",
    .usage = "CKPT [DELTA] [--sha256]\n"
             "URL [--base CKPT] [--no-decode] [--work DIR] [--trust KEY]...",
    .about =
        "Reads a whole checkpoint and prints its state digest. With DELTA: reports if "
        "the "
        "checkpoint is at the version that the delta starts from or at the one it leads "
        "to. In the first case it also decodes and checks the delta; if neither, the "
        "exit "
        "code is 4. A directory that pull or follow made must hold the version of its "
        "record, and the companion files as they were installed.\n\n"
        "For a stream (a URL, or a directory with stream.json) it reads and checks every "
        "record and every object that is kept, decodes every version from the one "
        "before, "
        "and names the first that does not decode. It writes nothing to the store.",
    .examples = "  deltawire verify model/\n"
                "  deltawire verify model/ step_000007.safetensors\n"
                "  deltawire verify s3://bucket/run --trust trainer.key.pub\n",
    .options = options,
    .n_least = 1,
    .n_most = 2,
    .run = run,
};
