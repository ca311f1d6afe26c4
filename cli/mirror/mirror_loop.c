/* The loop of `mirror`: find the next version in FROM, fetch it, write it to TO, wait.
 *
 * While nothing is new, the loop asks FROM often at first and then less, at least every
 * --interval seconds.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "json_out.h"
#include "mirror.h"
#include "outage.h"
#include "print.h"

#define T_FIRST_ASK 0.1 /* seconds between the first two questions after a version */

/* ---- reporting ---- */

static void report_json(const cli_mirrored *done, double seconds)
{
    json_t *object = json_object();
    cli_json_text(object, "event", "version");
    cli_json_count(object, "from_version", done->from_version);
    cli_json_count(object, "version", done->version);
    cli_json_flag(object, "whole", done->is_whole);
    cli_json_flag(object, "present", done->was_there);
    cli_json_flag(object, "verified", done->is_compared);
    cli_json_count(object, "changed", done->n_changed);
    cli_json_count(object, "objects", done->n_objects);
    cli_json_count(object, "bytes", done->n_bytes);
    cli_json_real(object, "seconds", seconds);
    cli_json_event(object);
}

static void report_version(const cli_mirror *m, const cli_mirrored *done, double seconds)
{
    char changed[CLI_NUMBER_SIZE], size[CLI_NUMBER_SIZE];
    if (m->session->json) {
        report_json(done, seconds);
        return;
    }
    if (m->session->quiet)
        return;
    printf("version %" PRIu64, done->from_version);
    if (done->version != done->from_version)
        printf(" is version %" PRIu64 " there", done->version);
    if (done->was_there)
        printf(": was there, and is the same");
    else if (done->is_whole)
        printf(": the whole model in %.3f s", seconds);
    else
        printf(": %s changed, %s in %.3f s", cli_format_count(changed, done->n_changed),
               cli_format_size(size, done->n_bytes), seconds);
    putchar('\n');
    fflush(stdout);
}

/* ---- doing ---- */

static dw_status go(cli_mirror *m, uint64_t version, dw_error *err)
{
    m->bar = cli_progress_start(m->session, "fetching");
    dw_progress hook = cli_progress_hook(&m->bar);
    dw_status status = cli_source_go(&m->source, version, &hook, err);
    cli_progress_end(&m->bar);
    return status;
}

/* Writes the version that the source is at. */
static dw_status put(cli_mirror *m, double t_start, dw_error *err)
{
    cli_mirrored done;
    m->bar = cli_progress_start(m->session, "writing");
    dw_progress hook = cli_progress_hook(&m->bar);
    dw_status status = cli_target_write(&m->target, &m->source, &hook, &done, err);
    cli_progress_end(&m->bar);
    if (status != DW_OK)
        return status;
    m->at = done.from_version;
    m->skipped = DW_NO_VERSION;
    m->to_at = done.version;
    if (!done.was_there) {
        m->n_done++;
        report_version(m, &done, cli_now() - t_start);
    }
    return DW_OK;
}

/* The model of another system's FROM takes its weights from TO, if TO has them as they
 * are. */
static dw_status seed(cli_mirror *m, dw_error *err)
{
    dw_status status = cli_source_check_notes(&m->source, m->at, m->target.notes, err);
    const bool is_there = cli_source_version(&m->source) == m->at;
    if (status != DW_OK || m->target.quantize || is_there)
        return status;
    m->bar = cli_progress_start(m->session, "fetching");
    dw_progress hook = cli_progress_hook(&m->bar);
    status = cli_source_seed(&m->source, m->target.store, m->to_at, m->at, &hook, err);
    cli_progress_end(&m->bar);
    if (status == DW_OK) /* FROM may have changed before its mark was kept */
        status = cli_source_check_notes(&m->source, m->at, m->target.notes, err);
    return status;
}

static dw_status prove_foreign(cli_mirror *m, dw_error *err)
{
    m->bar = cli_progress_start(m->session, "reading back");
    dw_progress hook = cli_progress_hook(&m->bar);
    dw_status status = cli_target_prove(&m->target, &m->source, &hook, err);
    cli_progress_end(&m->bar);
    return status;
}

/* Compares the newest version in TO with FROM, if FROM still has it. If it does not
 * decode any more, FROM goes to a later whole one, which is written. */
static dw_status prove_last(cli_mirror *m, dw_error *err)
{
    if (m->is_proven || m->at == DW_NO_VERSION) {
        m->is_proven = true;
        return DW_OK;
    }
    uint64_t next;
    dw_status status =
        m->at > 0 ? cli_source_next(&m->source, m->at - 1, &next, err) : DW_OK;
    if (status == DW_OK && m->at > 0 && next == DW_NO_VERSION)
        return dw_fail(err, DW_MISMATCH, m->target.url,
                       "it ends with version %" PRIu64 ", which %s does not have: "
                       "it mirrors something else",
                       m->at, m->source.url);
    if (status == DW_OK && cli_source_is_foreign(&m->source) && !m->target.format)
        status = seed(m, err);
    if (status == DW_OK)
        status = go(m, m->at, err);
    if (status == DW_NOT_FOUND) {
        m->is_proven = true; /* gone from FROM: nothing to compare with */
        return DW_OK;
    }
    if (status == DW_OK)
        status = m->target.format && cli_source_version(&m->source) == m->at
                     ? prove_foreign(m, err)
                     : put(m, cli_now(), err);
    m->is_proven = status == DW_OK;
    return status;
}

static dw_status open_ends(cli_mirror *m, dw_error *err)
{
    dw_status status = DW_OK;
    if (!m->has_source)
        status = cli_source_open(&m->source, err);
    m->has_source = status == DW_OK;
    if (status != DW_OK)
        return status;
    const bool is_stream = !cli_source_is_foreign(&m->source);
    if (!m->target.format && is_stream && !m->target.quantize)
        return dw_fail(err, DW_INVALID, m->source.url,
                       "both ends are deltawire streams: use deltawire cp, or give "
                       "--quantize, or --as trl or slime");
    m->target.from_stream =
        is_stream ? dw_stream_id(dw_follower_stream(m->source.follower)) : NULL;
    if (status == DW_OK && !m->has_target)
        status = cli_target_open(&m->target, &m->at, &m->to_at, err);
    m->has_target = status == DW_OK;
    return status;
}

/* A version with NaN or infinity has no quantised one. TO records the source of each
 * version, so the next one simply follows, and covers it. */
static void skip(cli_mirror *m, const dw_error *fault)
{
    m->skipped = cli_source_version(&m->source);
    if (m->session->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "skipped");
        cli_json_count(object, "from_version", m->skipped);
        cli_json_text(object, "code", dw_status_name(fault->code));
        cli_json_text(object, "text", fault->text);
        cli_json_event(object);
        return;
    }
    cli_print_message(m->source.url,
                      "version %" PRIu64
                      " is skipped, and the next version covers it: %.800s",
                      m->skipped, fault->text);
}

/* The newest version of FROM that is done with: it is in TO, or was skipped. */
static uint64_t last_done(const cli_mirror *m)
{
    return m->skipped != DW_NO_VERSION ? m->skipped : m->at;
}

/* Mirrors the next version. Sets *MOVED if there was one. */
static dw_status step(cli_mirror *m, bool *moved, dw_error *err)
{
    uint64_t next;
    const double t_start = cli_now();
    *moved = false;
    dw_status status = open_ends(m, err);
    if (status == DW_OK)
        status = prove_last(m, err);
    if (status == DW_OK)
        status = cli_source_next(&m->source, last_done(m), &next, err);
    if (status != DW_OK || next == DW_NO_VERSION)
        return status;
    status = go(m, next, err);
    if (status == DW_OK)
        status = put(m, t_start, err);
    if (status == DW_NOT_FINITE && m->target.quantize) {
        skip(m, err);
        status = DW_OK;
    }
    *moved = status == DW_OK;
    return status;
}

/* After an error TO is asked again where to go on. */
static void look_again(cli_mirror *m)
{
    m->has_target = m->is_proven = false;
}

/* Whether waiting may cure the error. */
static bool passes(const cli_mirror *m, dw_status status)
{
    return !m->once && (status == DW_UNAVAILABLE || status == DW_NOT_FOUND);
}

dw_status cli_mirror_loop(cli_mirror *m, dw_error *err)
{
    cli_outage outage = {.subject = m->source.url, .max_wait = m->interval};
    double wait = T_FIRST_ASK;
    for (;;) {
        bool moved = false;
        dw_status status = cli_check_signal(err);
        if (status == DW_OK)
            status = step(m, &moved, err);
        if (passes(m, status)) {
            look_again(m);
            cli_outage_add(&outage, m->session, err);
            cli_outage_sleep(&outage);
            continue;
        }
        if (status != DW_OK)
            return status;
        cli_outage_end(&outage, m->session);
        const uint64_t last = last_done(m);
        if (m->until != DW_NO_VERSION && last != DW_NO_VERSION && last >= m->until)
            return DW_OK;
        if (!moved && m->once)
            return DW_OK;
        wait = moved ? T_FIRST_ASK : wait;
        if (!moved)
            cli_sleep(wait);
        if (!moved)
            wait = 2 * wait < m->interval ? 2 * wait : m->interval;
    }
}
