#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cache_dir.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "mirror.h"
#include "print.h"

static const char help[] =
    "usage: deltawire mirror FROM TO [--as FORMAT] [--once] [OPTION...]\n"
    "       deltawire mirror FROM TO --quantize SCHEME [--once] [OPTION...]\n"
    "\n"
    "Turns the versions of one system into those of another, each in turn, until SIGINT "
    "or\n"
    "SIGTERM. When it is started again, it continues after the newest version in TO. "
    "FROM\n"
    "is a deltawire stream, or was written by TRL or slime; the format is "
    "detected.\n"
    "The weights of each version are compared bit for bit with those in TO.\n"
    "With --quantize TO is a deltawire stream of the quantised versions of FROM, each "
    "with\n"
    "its source, step and notes; only the version found at the start is compared.\n"
    "\n"
    "  --as FORMAT          what TO becomes: deltawire, trl or slime; default: "
    "what it\n"
    "                       is, or, from another system, deltawire\n"
    "  --once               end when TO has FROM's newest version\n"
    "  --until N            end once FROM's version N or a later one is there, or was\n"
    "                       skipped because it cannot be quantised\n"
    "  --interval S         ask for new versions at least every S seconds (5)\n"
    "  --work DIR           room for two copies of the model, kept for the next start;\n"
    "                       default: ~/.cache/deltawire/mirrors/HASH\n"
    "  --base CKPT          the checkpoint that FROM's first version starts from, if "
    "that\n"
    "                       is not there: slime's version 0\n" CLI_QUANTIZE_HELP
        CLI_PEER_HELP
    "  --sign-key FILE      TO is a deltawire stream: sign with this key\n"
    "  --new-key            TO may be signed by another key so far\n"
    "  --no-provenance      do not record this machine's name and the library's version\n"
    "                       in TO\n" CLI_TRUST_HELP CLI_STORE_HELP
    "  --to-endpoint URL  --to-region NAME  --to-profile NAME\n"
    "                       of TO; --endpoint, --region and --profile are FROM's\n"
    "  --json               one JSON object a line for each version\n"
    "  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire mirror s3://bucket/run s3://bucket/slime --as slime\n"
    "  deltawire mirror hf://buckets/org/trl-sync file:///mnt/run --once\n"
    "  deltawire mirror s3://bucket/run s3://bucket/run-fp8 --quantize fp8-block\n"
    "  deltawire mirror s3://bucket/run /mnt/trl --as trl --once --json\n";

typedef struct arguments {
    cli_mirror mirror;
    dw_store_options from_options;
    dw_store_options to_options;
    cli_keys keys;
    cli_peer_options peer;
    cli_quantize quantize;
    const char *work; /* --work, or NULL */
} arguments;

static void parse(arguments *a, cli_session *s, int argc, char **argv)
{
    enum {
        ONCE = CLI_OPT_OWN,
        UNTIL,
        INTERVAL,
        WORK,
        BASE,
        SIGN_KEY,
        NEW_KEY,
        NO_PROVENANCE,
        TO_ENDPOINT,
        TO_REGION,
        TO_PROFILE
    };
    static const struct option options[] = {
        {"once", no_argument, NULL, ONCE},
        {"until", required_argument, NULL, UNTIL},
        {"interval", required_argument, NULL, INTERVAL},
        {"work", required_argument, NULL, WORK},
        {"base", required_argument, NULL, BASE},
        {"sign-key", required_argument, NULL, SIGN_KEY},
        {"new-key", no_argument, NULL, NEW_KEY},
        {"no-provenance", no_argument, NULL, NO_PROVENANCE},
        CLI_TRUST_OPTIONS,
        {"to-endpoint", required_argument, NULL, TO_ENDPOINT},
        {"to-region", required_argument, NULL, TO_REGION},
        {"to-profile", required_argument, NULL, TO_PROFILE},
        CLI_QUANTIZE_OPTIONS,
        CLI_PEER_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    cli_mirror *m = &a->mirror;
    *a = (arguments){.mirror = {.interval = 5, .until = DW_NO_VERSION, .session = s}};
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        switch (option) {
        case ONCE:
            m->once = true;
            break;
        case UNTIL:
            m->until = cli_parse_version(s, "--until", optarg);
            break;
        case INTERVAL:
            m->interval = cli_parse_seconds(s, "--interval", optarg);
            break;
        case WORK:
            a->work = optarg;
            break;
        case BASE:
            m->source.base = optarg;
            break;
        case SIGN_KEY:
            a->keys.sign_path = optarg;
            break;
        case NEW_KEY:
            m->target.new_key = true;
            break;
        case NO_PROVENANCE:
            m->target.no_provenance = true;
            break;
        case CLI_OPT_TRUST:
        case CLI_OPT_STREAM:
            cli_keys_take(&a->keys, s, option);
            break;
        case TO_ENDPOINT:
            a->to_options.endpoint = optarg;
            break;
        case TO_REGION:
            a->to_options.region = optarg;
            break;
        case TO_PROFILE:
            a->to_options.profile = optarg;
            break;
        default:
            if (!cli_peer_option(&a->peer, option) &&
                !cli_quantize_option(&a->quantize, s, option))
                cli_store_option(&a->from_options, s, option);
        }
    }
    cli_expect_arguments(s, argc, 2, 2);
    m->target.quantize = cli_quantize_read(&a->quantize, s);
    a->to_options.deadline_ms = a->from_options.deadline_ms;
    m->at = m->to_at = m->skipped = DW_NO_VERSION;
    m->source.url = argv[optind];
    m->source.options = &a->from_options;
    m->source.session = s;
    m->target.url = argv[optind + 1];
    m->target.options = &a->to_options;
    m->target.session = s;
}

/* ---- the format of TO ---- */

/* The format of TO if --as is not given: that of the versions in TO. If there are none,
 * it is deltawire; two deltawire streams are refused later. */
static dw_status find_format(const arguments *a, dw_peer_format *format, bool *is_peer,
                             dw_error *err)
{
    dw_store *store = NULL;
    dw_status status =
        cli_store_open_at(&store, a->mirror.target.url, &a->to_options, err);
    if (status == DW_OK)
        status = dw_peer_detect(store, format, err);
    dw_store_close(store);
    *is_peer = status == DW_OK;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status choose_format(arguments *a, const cli_session *s, dw_error *err)
{
    cli_target *t = &a->mirror.target;
    dw_peer_format format = 0;
    dw_status status = DW_OK;
    if (!a->peer.as)
        status = find_format(a, &format, &t->is_peer, err);
    else
        t->is_peer = strcmp(a->peer.as, "deltawire") != 0;
    if (status != DW_OK)
        return status;
    if (a->peer.as && t->is_peer && !dw_peer_format_from_name(&format, a->peer.as))
        cli_usage_error(s, "--as: '%s' is none of deltawire, trl, slime", a->peer.as);
    if (t->is_peer && t->quantize)
        cli_usage_error(s, "--quantize: TO must be a deltawire stream, not one of %s",
                        dw_peer_format_name(format));
    if (t->is_peer && a->keys.sign_path)
        cli_usage_error(s, "--sign-key: %s has no signatures",
                        dw_peer_format_name(format));
    if (t->is_peer)
        t->peer_options = cli_peer_options_read(&a->peer, s, format);
    else if (cli_peer_options_given(&a->peer))
        cli_usage_error(s, "--trl, --codec, --checksum, --whole-every and --max-shard go "
                           "with --as trl or slime");
    return DW_OK;
}

/* ---- running ---- */

/* A directory in the user's cache for this pair of URLs. Free it with dw_free. NULL after
 * an error. */
static char *default_work(const arguments *a, dw_error *err)
{
    dw_store *from = NULL, *to = NULL;
    char *work = NULL;
    if (cli_store_open_at(&from, a->mirror.source.url, &a->from_options, err) == DW_OK &&
        cli_store_open_at(&to, a->mirror.target.url, &a->to_options, err) == DW_OK) {
        const char *parts[] = {dw_store_url(from), a->from_options.endpoint,
                               dw_store_url(to), a->to_options.endpoint,
                               dw_peer_format_name(a->mirror.target.peer_options.format)};
        work = cli_cache_dir("mirrors", parts, a->mirror.target.is_peer ? 5 : 4, "--work",
                             err);
        cli_cache_state state;
        if (work && (cli_cache_use(work, dw_store_url(to), &state, err) != DW_OK ||
                     cli_cache_note(work, dw_store_url(to), err) != DW_OK)) {
            dw_free(work);
            work = NULL;
        }
    }
    dw_store_close(from);
    dw_store_close(to);
    return work;
}

static void report_end(const cli_mirror *m, const char *event)
{
    if (m->session->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", event);
        cli_json_version(object, "from_version", m->at);
        cli_json_version(object, "version", m->to_at);
        cli_json_count(object, "versions", m->n_done);
        cli_json_event(object);
    } else if (!m->session->quiet && m->to_at != DW_NO_VERSION) {
        char source[64] = "";
        if (m->at != m->to_at)
            snprintf(source, sizeof source, ", made of FROM's version %" PRIu64, m->at);
        cli_print_message(
            "", "%" PRIu64 " version%s written, the newest is %" PRIu64 "%s", m->n_done,
            m->n_done == 1 ? " was" : "s were", m->to_at, source);
    }
}

static int run(cli_mirror *m, const char *work)
{
    dw_error err = {0};
    char *into = dw_join_path(work, "from");
    if (!into)
        return cli_fail_as(m->session, "no memory", work, "out of memory", NULL);
    m->source.into = into;
    m->target.work = work;
    dw_status status = cli_mirror_loop(m, &err);
    cli_target_close(&m->target);
    cli_source_close(&m->source);
    dw_free(into);
    if (status == DW_OK || status == DW_CANCELLED)
        report_end(m, status == DW_OK ? "done" : "stopped");
    /* a signal is the normal end, unless --once or --until was given */
    if (status == DW_OK || (status == DW_CANCELLED && !m->once))
        return 0;
    return cli_fail(m->session, &err, m->target.url, NULL);
}

int dw_cmd_mirror(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a;
    dw_error err = {0};
    parse(&a, &s, argc, argv);
    int exit_code = cli_keys_load(&a.keys, &s);
    char *work = NULL;
    if (exit_code == 0 && choose_format(&a, &s, &err) != DW_OK)
        exit_code = cli_fail(&s, &err, a.mirror.target.url, NULL);
    if (exit_code == 0 && !a.work && !(work = default_work(&a, &err)))
        exit_code = cli_fail(&s, &err, NULL, NULL);
    if (exit_code == 0) {
        a.mirror.source.trust = cli_keys_trust(&a.keys);
        a.mirror.target.sign_key = a.keys.sign_key;
        exit_code = run(&a.mirror, a.work ? a.work : work);
    }
    dw_free(work);
    cli_keys_release(&a.keys);
    return exit_code;
}
