#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "mirror.h"
#include "path.h"
#include "progress_bar.h"
#include "publish_files.h"

#define WAIT_MS     100
#define CLAIM_TRIES 3

/* ---- its newest version ---- */

/* If a mirror wrote a deltawire version, its training step is FROM's number. */
static bool read_step(const dw_version_info *info, uint64_t *version)
{
    char *end;
    errno = 0;
    *version = strtoull(info->step, &end, 10);
    return info->step[0] >= '0' && info->step[0] <= '9' && !*end && errno == 0 &&
           *version != DW_NO_VERSION &&
           strncmp(info->notes, CLI_NOTES_BEGIN, strlen(CLI_NOTES_BEGIN)) == 0;
}

/* The version of FROM that a version of TO was made of. */
static dw_status read_source(const cli_target *t, const dw_version_info *info,
                             uint64_t *version, dw_error *err)
{
    if (info->source.stream && t->from_stream &&
        strcmp(info->source.stream, t->from_stream) != 0)
        return dw_fail(err, DW_CONFLICT, t->url,
                       "version %" PRIu64
                       " was made of stream %s, but FROM is stream %s: "
                       "name another place",
                       info->version, info->source.stream, t->from_stream);
    *version = info->source.version;
    if (info->source.stream ? t->from_stream != NULL : read_step(info, version))
        return DW_OK;
    return dw_fail(err, DW_CONFLICT, t->url,
                   "version %" PRIu64 " was not written by a mirror: name another place",
                   info->version);
}

/* The newest version of the stream in TO. */
typedef struct target_head {
    uint64_t version;      /* DW_NO_VERSION: there is none */
    uint64_t from_version; /* what it was made of; DW_NO_VERSION: there is none */
    dw_digest state;
    uint64_t n_objects;
    uint64_t n_bytes;
} target_head;

static dw_status read_head(cli_target *t, target_head *out, dw_error *err)
{
    dw_stream *stream = NULL;
    dw_version_info info;
    uint64_t head;
    *out = (target_head){.version = DW_NO_VERSION, .from_version = DW_NO_VERSION};
    dw_status status = dw_stream_open(&stream, t->store, NULL, err);
    if (status == DW_OK)
        status = dw_stream_head(stream, &head, err);
    if (status == DW_OK)
        status = dw_stream_version(stream, head, &info, err);
    if (status == DW_OK) {
        out->version = head;
        out->state = info.state;
        out->n_objects = info.n_objects;
        out->n_bytes = info.n_bytes;
        snprintf(t->notes, sizeof t->notes, "%s", info.notes);
        status = read_source(t, &info, &out->from_version, err);
    }
    dw_stream_close(stream);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status look_at_stream(cli_target *t, uint64_t *from_version, uint64_t *version,
                                dw_error *err)
{
    target_head head;
    const dw_format *format;
    dw_status status = dw_format_detect(&format, t->store, err);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, t->url,
                       "versions of %s are here: give --as %s, or another place",
                       dw_format_name(format), dw_format_name(format));
    if (status != DW_NOT_FOUND)
        return status;
    status = read_head(t, &head, err);
    *from_version = head.from_version;
    *version = head.version;
    return status;
}

static dw_status look_at_foreign(cli_target *t, uint64_t *from_version, uint64_t *version,
                                 dw_error *err)
{
    const dw_foreign_version *versions;
    size_t n = 0;
    t->foreign_options.work_dir = t->work;
    dw_status status = t->foreign ? DW_OK
                                  : dw_foreign_open(&t->foreign, t->store, t->format,
                                                    &t->foreign_options, err);
    if (status == DW_OK)
        status = dw_foreign_list(t->foreign, &versions, &n, err);
    if (status == DW_OK && n > 0)
        *from_version = *version = versions[n - 1].version;
    return status;
}

dw_status cli_target_open(cli_target *t, uint64_t *from_version, uint64_t *version,
                          dw_error *err)
{
    *from_version = *version = DW_NO_VERSION;
    dw_status status =
        t->store ? DW_OK : cli_store_open_at(&t->store, t->url, t->options, err);
    if (status == DW_OK)
        status = t->format ? look_at_foreign(t, from_version, version, err)
                           : look_at_stream(t, from_version, version, err);
    return status;
}

static void close_writers(cli_target *t)
{
    dw_publisher_close(t->publisher);
    dw_foreign_close(t->foreign);
    t->publisher = NULL;
    t->foreign = NULL;
}

void cli_target_close(cli_target *t)
{
    close_writers(t);
    dw_store_close(t->store);
    t->store = NULL;
}

/* A publisher reads the weights at the addresses that it was opened with. */
static void forget_moved(cli_target *t, const dw_tensor *tensors, size_t n)
{
    const void *data = n > 0 ? tensors[0].data : NULL;
    if (t->publisher && (t->tensors != tensors || t->data != data))
        close_writers(t);
    t->tensors = tensors;
    t->data = data;
}

static dw_status make_baseline(const cli_target *t, char **out, dw_error *err)
{
    *out = dw_join_path(t->work, "to");
    return *out ? cli_path_make_directories(*out, err) : dw_fail_memory(err, t->work);
}

/* ---- a deltawire stream ---- */

static dw_status wait_for(cli_target *t, uint64_t ticket, const dw_progress *progress,
                          dw_publish_report *report, dw_error *err)
{
    bool done = false;
    dw_status status = DW_OK;
    while (!done) {
        status = dw_publisher_wait(t->publisher, ticket, WAIT_MS, &done, report, err);
        if (!done && status != DW_UNAVAILABLE && status != DW_OK)
            return status;
        if (!done && progress->report && progress->report(progress->context, 0, 0) != 0) {
            dw_publisher_cancel(t->publisher);
            return cli_check_signal(err);
        }
    }
    return status;
}

/* The baseline is in WORK. */
static void name_work(dw_error *err)
{
    static const char theirs[] = "`baseline_dir`", ours[] = "--work";
    char *at = strstr(err->text, theirs);
    if (!at)
        return;
    memcpy(at, ours, strlen(ours));
    memmove(at + strlen(ours), at + strlen(theirs), strlen(at + strlen(theirs)) + 1);
}

static dw_status open_publisher(cli_target *t, const dw_tensor *tensors, size_t n,
                                const dw_publish_note *note, bool is_new,
                                const dw_progress *progress, dw_error *err)
{
    char *baseline = NULL;
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.sign_key = t->sign_key;
    options.new_key = t->new_key;
    options.no_provenance = t->no_provenance;
    options.take_over = t->take_over;
    options.first_step = note->step;
    options.first_notes = note->notes;
    options.first_source = note->source;
    if (is_new) { /* else the publish gives them */
        options.files = note->files;
        options.n_files = note->n_files;
        options.has_files = note->has_files;
    }
    options.quantize = t->quantize;
    options.n_threads = t->session->n_threads;
    options.progress = *progress;
    cli_writer_notices(&options, t->session, t->url);
    dw_status status = make_baseline(t, &baseline, err);
    options.baseline_dir = baseline;
    if (status == DW_OK)
        status = dw_publisher_open(&t->publisher, t->store, tensors, n, &options, err);
    if (status != DW_OK)
        name_work(err);
    dw_free(baseline);
    return status;
}

/* The notes of a version, and the version of FROM that it is made of. */
typedef struct mirror_note {
    char step[24], notes[CLI_NOTES_SIZE];
    dw_version_source source;
    cli_source_files files;
    dw_publish_note note;
} mirror_note;

/* A derived stream takes step and notes of its source. The texts of a stream live until
 * its next call. */
static dw_status fill_note(mirror_note *out, const cli_target *t,
                           const cli_source *source, uint64_t from_version,
                           bool with_files, dw_error *err)
{
    dw_publish_note_init(&out->note);
    out->note.step = out->step;
    out->note.notes = out->notes;
    if (cli_source_is_foreign(source)) {
        snprintf(out->step, sizeof out->step, "%" PRIu64, from_version);
        cli_source_write_notes(source, out->notes, sizeof out->notes);
        return DW_OK;
    }
    dw_version_info info;
    dw_status status = DW_OK;
    if (with_files)
        status = cli_source_files_read(source, t->knows_files ? t->files_sha256 : NULL,
                                       &out->files, err);
    if (status == DW_OK)
        status = cli_source_commit(source, &info, err);
    if (status != DW_OK)
        return status;
    out->note.has_files = out->files.is_given && !out->files.is_known;
    out->note.files = out->files.items;
    out->note.n_files = out->files.n;
    out->source = (dw_version_source){dw_stream_id(dw_follower_stream(source->follower)),
                                      info.version, info.commit_sha256};
    out->note.step = info.step;
    out->note.notes = info.notes;
    out->note.source = &out->source;
    return DW_OK;
}

/* TO has another mirror's version that this publisher does not know: the other has taken
 * over. */
static dw_status check_own(const cli_target *t, const target_head *head, dw_error *err)
{
    return dw_publisher_version(t->publisher) == head->version
               ? DW_OK
               : dw_fail(err, DW_CONFLICT, t->url,
                         "another mirror made version %" PRIu64 " here: stop one of the "
                         "two",
                         head->version);
}

/* Finds the newest version of TO. If a version must be written or proven, TO is claimed
 * first, by opening the publisher: until then another mirror may write it. *CREATED: that
 * committed SOURCE's weights as version 0. */
static dw_status claim_head(cli_target *t, const cli_source *source, mirror_note *note,
                            const dw_progress *progress, target_head *head, bool *created,
                            dw_error *err)
{
    size_t n;
    const dw_tensor *tensors = cli_source_tensors(source, &n);
    const uint64_t from_version = cli_source_version(source);
    *created = false;
    dw_status status = read_head(t, head, err);
    const bool is_new = head->version == DW_NO_VERSION;
    bool lacks = is_new || head->from_version < from_version;
    if (status == DW_OK)
        status = fill_note(note, t, source, from_version, lacks, err);
    if (t->publisher)
        return status;
    const bool proves = t->quantize && !is_new && head->from_version == from_version;
    for (unsigned tries = 0; status == DW_OK && (lacks || proves); tries++) {
        status = open_publisher(t, tensors, n, &note->note, is_new, progress, err);
        *created = status == DW_OK && dw_publisher_created(t->publisher);
        if (status == DW_OK)
            status = read_head(t, head, err);
        if (status != DW_OK || check_own(t, head, err) == DW_OK)
            break;
        /* what the writer before sent has arrived late */
        close_writers(t);
        if (tries + 1 == CLAIM_TRIES)
            return DW_CONFLICT;
    }
    return status;
}

/* Publishes SOURCE's weights as the next version. */
static dw_status publish_next(cli_target *t, const mirror_note *note,
                              const dw_progress *progress, target_head *head,
                              cli_mirrored *out, dw_error *err)
{
    dw_publish_report report = {0};
    uint64_t ticket = 0;
    dw_status status = dw_publisher_publish(t->publisher, &ticket, &note->note, err);
    if (status == DW_OK)
        status = wait_for(t, ticket, progress, &report, err);
    /* makes the anchors that are due; a failure harms no version, and they stay due */
    if (status == DW_OK)
        dw_publisher_drain(t->publisher, NULL);
    head->version = report.version;
    head->state = report.state;
    head->n_objects = report.n_objects;
    head->n_bytes = report.n_bytes;
    out->n_changed = report.n_changed;
    return status;
}

/* Proves that the head of TO is what SOURCE has, quantised. */
static dw_status prove_quantized(cli_target *t, const target_head *head, dw_error *err)
{
    bool is_current = false;
    dw_status status = check_own(t, head, err);
    if (status == DW_OK)
        status = dw_publisher_is_current(t->publisher, &is_current, err);
    if (status == DW_OK && !is_current)
        status = dw_fail(err, DW_MISMATCH, t->url,
                         "version %" PRIu64 " is not version %" PRIu64
                         " of the source, quantised: it was made with other options, or "
                         "of another stream. Name another place",
                         head->version, head->from_version);
    return status;
}

/* Proves that the head of TO is what SOURCE has. */
static dw_status prove_state(const cli_target *t, const cli_source *source,
                             const target_head *head, dw_error *err)
{
    dw_digest wanted = 0;
    dw_status status = cli_source_state(source, &wanted, err);
    if (status != DW_OK || head->state == wanted)
        return status;
    return dw_fail(err, DW_MISMATCH, t->url,
                   "version %" PRIu64 " is not version %" PRIu64
                   " of the source: their digests are %016" PRIx64 " and %016" PRIx64,
                   head->version, cli_source_version(source), head->state, wanted);
}

static dw_status write_stream(cli_target *t, const cli_source *source,
                              const dw_progress *progress, cli_mirrored *out,
                              dw_error *err)
{
    mirror_note note = {.files = {0}};
    target_head head;
    bool is_new = false;
    dw_status status = claim_head(t, source, &note, progress, &head, &is_new, err);
    out->is_whole = is_new;
    out->was_there = status == DW_OK && !is_new && head.version != DW_NO_VERSION &&
                     head.from_version >= out->from_version;
    const bool is_ahead = out->was_there && head.from_version > out->from_version;
    if (status == DW_OK && !is_new && !out->was_there)
        status = publish_next(t, &note, progress, &head, out, err);
    if (status == DW_OK && !out->was_there && note.note.has_files) {
        memcpy(t->files_sha256, note.files.sha256, sizeof t->files_sha256);
        t->knows_files = true;
    }
    cli_source_files_release(&note.files);
    /* what was quantised is compared only if it is found */
    out->is_compared = !is_ahead && (!t->quantize || out->was_there);
    if (status == DW_OK && out->is_compared)
        status = t->quantize ? prove_quantized(t, &head, err)
                             : prove_state(t, source, &head, err);
    if (is_ahead) /* another mirror made it */
        out->from_version = head.from_version;
    out->version = head.version;
    out->n_objects = out->was_there ? 0 : head.n_objects;
    out->n_bytes = out->was_there ? 0 : head.n_bytes;
    return status;
}

/* ---- another system's ---- */

dw_status cli_target_prove(cli_target *t, const cli_source *source,
                           const dw_progress *progress, dw_error *err)
{
    size_t n;
    const dw_tensor *tensors = cli_source_tensors(source, &n);
    dw_status status =
        dw_foreign_go(t->foreign, cli_source_version(source), progress, err);
    return status == DW_OK ? dw_foreign_compare(t->foreign, tensors, n, err) : status;
}

static dw_status write_foreign(cli_target *t, const cli_source *source,
                               const dw_progress *progress, cli_mirrored *out,
                               dw_error *err)
{
    size_t n;
    const dw_tensor *tensors = cli_source_tensors(source, &n);
    dw_foreign_report report;
    dw_status status = dw_foreign_write(t->foreign, out->from_version, tensors, n,
                                        progress, &report, err);
    out->version = out->from_version;
    out->is_compared = true;
    out->is_whole = report.is_whole;
    out->n_changed = report.n_changed;
    out->n_objects = report.n_objects;
    out->n_bytes = report.n_bytes;
    return status;
}

dw_status cli_target_write(cli_target *t, const cli_source *source,
                           const dw_progress *progress, cli_mirrored *out, dw_error *err)
{
    size_t n;
    const dw_tensor *tensors = cli_source_tensors(source, &n);
    *out = (cli_mirrored){.from_version = cli_source_version(source)};
    forget_moved(t, tensors, n);
    dw_status status = t->format ? write_foreign(t, source, progress, out, err)
                                 : write_stream(t, source, progress, out, err);
    /* after an error, a new one finds out the state */
    if (status != DW_OK)
        close_writers(t);
    return status;
}
