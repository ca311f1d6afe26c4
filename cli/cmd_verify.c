#include <inttypes.h>
#include <stdlib.h>

#include <deltawire/deltawire.h>

#include "commands.h"
#include "error.h"
#include "json.h"
#include "options.h"
#include "peer.h"
#include "print.h"
#include "progress.h"
#include "pulled.h"
#include "sha256.h"
#include "store.h"
#include "verify_stream.h"
#include "weights.h"

static const char help[] =
    "usage: deltawire verify CKPT [DELTA] [--sha256]\n"
    "       deltawire verify URL [--trust KEY]...\n"
    "\n"
    "Reads a whole checkpoint and prints its state digest. With DELTA: says whether the\n"
    "checkpoint stands at the version the delta starts from, in which case the delta is\n"
    "decoded and checked too, or at the one it leads to; neither is exit code 4. A\n"
    "directory that pull or follow made must hold the version it says it does.\n"
    "\n"
    "Of a stream (a URL, or a directory with stream.json) every record and every object\n"
    "that is kept is read and checked. So is every version of TRL, slime or SkyRL, as "
    "far\n"
    "as their formats allow, which is told. Nothing is written.\n"
    "\n"
    "  --sha256             also SHA-256 over all tensor bytes in order of their "
    "names\n"
    "  --base CKPT          the model that the versions of slime or SkyRL start "
    "from\n" CLI_TRUST_HELP CLI_STORE_HELP "  --json  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire verify model/\n"
    "  deltawire verify model/ step_000007.safetensors\n"
    "  deltawire verify s3://bucket/run --trust trainer.key.pub\n"
    "  deltawire verify /shared/slime-deltas --base Qwen3-4B/\n";

/* Where the checkpoint stands, seen from the delta. */
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
    cli_pulled pulled;
    char sha256[CLI_SHA256_TEXT]; /* empty where not asked for */
} findings;

/* Decodes the delta against the weights. This checks all it says, and where the weights
 * are not its base, it tells the first tensor that differs. */
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
        if (f->pulled.present) {
            cli_json_text(object, "stream", f->pulled.stream);
            cli_json_count(object, "version", f->pulled.version);
        }
        if (f->standing != NO_DELTA) {
            cli_json_text(object, "standing", names[f->standing]);
            cli_json_count(object, "base_version", f->delta.base_version);
            cli_json_count(object, "new_version", f->delta.new_version);
        }
        cli_json_print(object);
        return;
    }
    cli_print_text(stdout, path);
    putchar('\n');
    cli_print_row("state", "%016" PRIx64, f->state);
    if (f->sha256[0])
        cli_print_row("SHA-256", "%s", f->sha256);
    if (f->pulled.present)
        cli_print_row("holds", "version %" PRIu64 " of stream %s", f->pulled.version,
                      f->pulled.stream);
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

/* A directory that follows a stream says which version it is; the weights decide. */
static dw_status check_pulled(findings *f, const char *path, dw_error *err)
{
    dw_status status = cli_pulled_read(&f->pulled, path, err);
    if (status != DW_OK || !f->pulled.present || f->pulled.state == f->state)
        return status;
    return cli_error_set(err, DW_CORRUPT, path,
                         "the weights (state %016" PRIx64 ") are not version %" PRIu64
                         " of stream %s (state %016" PRIx64
                         "), which this directory says it holds: pull into a new one",
                         f->state, f->pulled.version, f->pulled.stream, f->pulled.state);
}

static int verify(const char *path, const char *delta_path, bool with_sha256,
                  const cli_weights *weights, const dw_delta *delta, const cli_session *s)
{
    dw_error err;
    findings f = {0};
    dw_digest *digests = calloc(weights->n_tensors + 1, sizeof *digests);
    dw_status status = digests ? cli_weights_digest(digests, &f.state, weights, s, &err)
                               : cli_error_set(&err, DW_NO_MEMORY, path, "out of memory");
    if (status == DW_OK)
        status = check_pulled(&f, path, &err);
    if (status == DW_OK && delta)
        status = compare(&f, delta, weights, digests, s, &err);
    if (status == DW_OK && with_sha256)
        status = cli_sha256_weights(f.sha256, weights, s, &err);
    free(digests);
    if (status != DW_OK)
        return cli_fail(s, &err, delta_path ? delta_path : path, NULL);
    print_findings(&f, path, s);
    return 0;
}

static int verify_checkpoint(const char *path, const char *delta_path, bool with_sha256,
                             const cli_session *s)
{
    dw_delta *delta = NULL;
    dw_error err;
    if (delta_path && dw_delta_open(&delta, delta_path, &err) != DW_OK)
        return cli_fail(s, &err, delta_path, NULL);
    cli_weights weights;
    int exit_code = cli_weights_open(&weights, s, path);
    if (exit_code == 0)
        exit_code = verify(path, delta_path, with_sha256, &weights, delta, s);
    cli_weights_close(&weights);
    dw_delta_close(delta);
    return exit_code;
}

int dw_cmd_verify(int argc, char **argv)
{
    enum { SHA256 = CLI_OPT_OWN, TRUST, BASE };
    static const struct option options[] = {{"sha256", no_argument, NULL, SHA256},
                                            {"trust", required_argument, NULL, TRUST},
                                            {"base", required_argument, NULL, BASE},
                                            CLI_STORE_OPTIONS,
                                            CLI_COMMON_OPTIONS};
    cli_session s = cli_session_start(argc, argv, help);
    cli_stream stream = {0};
    const char *base = NULL;
    bool with_sha256 = false, for_stream = false;
    for (int option; (option = cli_next_option(&s, argc, argv, options)) != -1;) {
        if (option == SHA256)
            with_sha256 = true;
        else if (option == TRUST)
            cli_keys_add(&stream.keys, &s, optarg);
        else if (option == BASE)
            base = optarg;
        for_stream |= cli_store_option(&stream.options, &s, option) || option == TRUST ||
                      option == BASE;
    }
    cli_expect_arguments(&s, argc, 1, 2);
    const char *path = argv[optind];
    const char *delta_path = argc - optind == 2 ? argv[optind + 1] : NULL;
    if (cli_is_stream(path) || cli_peer_is_dir(path)) {
        if (delta_path || with_sha256)
            cli_usage_error(&s, "%s is a stream: DELTA and --sha256 are for checkpoints",
                            path);
        stream.url = path;
        return cli_verify_stream(&stream, &s, base);
    }
    if (for_stream)
        cli_usage_error(&s,
                        "%s is no stream: --trust, --base, --endpoint, --region, "
                        "--profile and --timeout are for streams",
                        path);
    return verify_checkpoint(path, delta_path, with_sha256, &s);
}
