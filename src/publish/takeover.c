#include "publish/takeover.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "publish/publisher.h"
#include "store/store.h"
#include "stream/transfer.h"

#define HOUR_MS   3600000
#define LOOK_MS   1000 /* between two looks */
#define MOST_NEW  2    /* the first may have been under way when its writer ended */
#define TEXT_SIZE 1024

/* The writer that is there. */
typedef struct writer {
    uint64_t epoch;
    dw_epoch_record claim; /* zeros if it is lost */
    uint64_t head;         /* or DW_NO_VERSION */
    uint64_t head_epoch;
    char step[80];
    char time[32]; /* of its last commit, or of its claim */
    char host[DW_HOST_NAME_TEXT];
} writer;

static dw_status read_writer(writer *out, dw_publisher *p, uint64_t epoch, dw_error *err)
{
    dw_commit_record c;
    *out = (writer){.epoch = epoch, .head = DW_NO_VERSION};
    dw_status status = dw_stream_read_epoch(p->stream, epoch, &out->claim, err);
    if (status != DW_OK && !dw_stream_passes_over(status))
        return status;
    memcpy(out->time, out->claim.created, sizeof out->time);
    memcpy(out->host, out->claim.made_by.host, sizeof out->host);
    status = dw_stream_read_head(p->stream, p->stream->head, &c, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    out->head = c.version;
    out->head_epoch = c.epoch;
    if (c.epoch == epoch) {
        dw_text_clean(out->step, sizeof out->step, c.step);
        memcpy(out->time, c.created, sizeof out->time);
        memcpy(out->host, c.made_by.host, sizeof out->host);
    }
    dw_commit_record_release(&c);
    return DW_OK;
}

/* "process 12 on host X, job Y". */
static void name_writer(char *out, size_t size, const writer *w)
{
    char job[80] = "";
    int n = 0;
    if (w->claim.job)
        dw_text_clean(job, sizeof job, w->claim.job);
    if (w->claim.process.pid != 0)
        n = snprintf(out, size, "process %" PRIu64, w->claim.process.pid);
    else
        n = snprintf(out, size, "a writer");
    snprintf(out + n, size - (size_t)n, "%s%s%s%s", w->host[0] ? " on host " : "",
             w->host, job[0] ? ", job " : "", job);
}

static void notify(dw_publisher *p, const writer *w, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Who wrote the newest version, and when; then the rest of the line. */
static void notify(dw_publisher *p, const writer *w, const char *format, ...)
{
    char line[TEXT_SIZE], name[480], rest[256];
    va_list args;
    if (!p->options.notice)
        return;
    name_writer(name, sizeof name, w);
    va_start(args, format);
    vsnprintf(rest, sizeof rest, format, args);
    va_end(args);
    if (w->head_epoch == w->epoch && w->head != DW_NO_VERSION)
        snprintf(line, sizeof line,
                 "version %" PRIu64 "%s%s%s was committed %s by %s: %s", w->head,
                 w->step[0] ? " (step " : "", w->step, w->step[0] ? ")" : "", w->time,
                 name, rest);
    else
        snprintf(line, sizeof line, "the stream was claimed %s by %s: %s", w->time, name,
                 rest);
    p->options.notice(p->options.notice_context, line);
}

/* Whether the writer closed the stream: it left a receipt. */
static bool has_left(dw_publisher *p, const writer *w)
{
    char key[DW_KEY_TEXT];
    dw_writer bytes;
    dw_receipt_record r;
    dw_key_receipt(key, w->epoch, 0);
    if (dw_record_fetch(&bytes, p->store, key, NULL) != DW_OK)
        return false;
    bool is_left =
        dw_receipt_record_parse(&r, bytes.bytes, bytes.n_bytes, key, NULL) == DW_OK;
    dw_writer_release(&bytes);
    if (!is_left)
        return false;
    is_left = r.says == DW_SAYS_LEFT && r.epoch == w->epoch &&
              strcmp(r.stream, p->stream->record.stream) == 0 &&
              strcmp(r.writer, w->claim.writer) == 0;
    dw_receipt_record_release(&r);
    return is_left;
}

/* For how long the writer has written nothing, by the store's clock alone; 0: not known.
 * In a copy of a stream everything is new, but no two clocks differ by an hour. */
static uint64_t find_quiet_ms(dw_publisher *p, const writer *w)
{
    char key[DW_KEY_TEXT], id[DW_ID_TEXT];
    int64_t now = 0, then = 0, claimed = 0;
    const int64_t written = dw_time_parse(w->time), age = dw_wall_clock_ms() - written;
    if (written != 0 && age >= HOUR_MS)
        return (uint64_t)age;
    dw_key_epoch(key, w->epoch);
    if (dw_store_stat(p->store, key, NULL, &claimed, NULL) != DW_OK)
        claimed = 0;
    if (w->head_epoch == w->epoch) {
        dw_key_commit(key, w->head);
        if (dw_store_stat(p->store, key, NULL, &then, NULL) != DW_OK || then == 0)
            return 0;
    }
    then = then > claimed ? then : claimed;
    if (then == 0 || dw_random_id(id, NULL) != DW_OK)
        return 0;
    snprintf(key, sizeof key, "probe/%s", id);
    if (dw_store_put_bytes(p->store, key, "now", 3, DW_PUT_CREATE, NULL) == DW_OK &&
        dw_store_stat(p->store, key, NULL, &now, NULL) != DW_OK)
        now = 0;
    (void)dw_store_remove(p->store, key, NULL);
    return now > then ? (uint64_t)(now - then) : 0;
}

static dw_status fail_alive(dw_publisher *p, const writer *w, dw_error *err)
{
    char name[480];
    name_writer(name, sizeof name, w);
    return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                   "%s goes on: it committed version %" PRIu64
                   " while this one waited. Stop it, or take over from it: `take_over` "
                   "(--take-over)",
                   name, w->head);
}

/* Looks if anything new is there. *HAS_NEW: a commit. */
static dw_status look(dw_publisher *p, writer *w, bool *has_new, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_commit_record c;
    dw_key_epoch(key, w->epoch + 1);
    dw_status status = dw_store_stat(p->store, key, NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                       "another writer took the stream over while this one waited. Stop "
                       "one of the two, or take over from it: `take_over` (--take-over)");
    if (status != DW_NOT_FOUND)
        return status;
    const uint64_t next = w->head == DW_NO_VERSION ? 0 : w->head + 1;
    status = dw_stream_read_commit(p->stream, next, &c, err);
    *has_new = status == DW_OK;
    if (!*has_new)
        return status == DW_NOT_FOUND ? DW_OK : status;
    w->head = next;
    dw_commit_record_release(&c);
    return DW_OK;
}

/* Waits until nothing is written for as long as the options say, QUIET_MS of which are
 * over. */
static dw_status wait_until_quiet(dw_publisher *p, writer *w, uint64_t quiet_ms,
                                  dw_error *err)
{
    const uint64_t limit = p->options.quiet_ms;
    const dw_progress *progress = &p->options.progress;
    uint64_t since = dw_clock_ms() - quiet_ms;
    unsigned n_new = 0;
    for (;;) {
        bool has_new = false;
        if (progress->report && progress->report(progress->context, 0, 0) != 0)
            return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                           "cancelled while waiting for the writer before");
        dw_status status = look(p, w, &has_new, err);
        if (status != DW_OK)
            return status;
        if (has_new && ++n_new == MOST_NEW)
            return fail_alive(p, w, err);
        if (has_new)
            since = dw_clock_ms();
        if (dw_process_has_ended(&w->claim.process) || has_left(p, w))
            return DW_OK;
        const uint64_t quiet = dw_clock_ms() - since;
        if (quiet >= limit)
            return DW_OK;
        dw_sleep_ms(limit - quiet < LOOK_MS ? limit - quiet : LOOK_MS);
    }
}

static bool is_same_job(const dw_publisher *p, const writer *w)
{
    return p->options.job && *p->options.job && w->claim.job &&
           strcmp(p->options.job, w->claim.job) == 0;
}

static dw_status await(dw_publisher *p, writer *w, dw_error *err)
{
    static const char goes_on[] = ", so this one takes over";
    dw_process self;
    const unsigned limit = p->options.quiet_ms;
    dw_process_self(&self);
    if (dw_process_equal(&self, &w->claim.process))
        notify(p, w, "that is this process%s", goes_on);
    else if (dw_process_has_ended(&w->claim.process))
        notify(p, w, "it has ended%s", goes_on);
    else if (is_same_job(p, w))
        notify(p, w, "it is the same job%s", goes_on);
    else if (p->options.take_over)
        notify(p, w, "this one takes over from it");
    else {
        const uint64_t quiet_ms = find_quiet_ms(p, w);
        if (quiet_ms >= limit) {
            notify(p, w, "it wrote nothing for %" PRIu64 " s%s", quiet_ms / 1000,
                   goes_on);
            return DW_OK;
        }
        notify(
            p, w,
            "it may still write. Waiting until it writes nothing for %u s; `take_over` "
            "(--take-over) does not wait",
            (limit + 999) / 1000);
        dw_status status = wait_until_quiet(p, w, quiet_ms, err);
        if (status == DW_OK)
            notify(p, w, "it writes no more%s", goes_on);
        return status;
    }
    return DW_OK;
}

dw_status dw_writer_await(dw_publisher *p, uint64_t epoch, dw_error *err)
{
    writer w;
    if (epoch == 0 || (p->options.take_over && !p->options.notice))
        return DW_OK;
    dw_status status = read_writer(&w, p, epoch, err);
    if (status == DW_OK && !has_left(p, &w))
        status = await(p, &w, err);
    dw_epoch_record_release(&w.claim);
    return status;
}
