#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint_read.h"
#include "mirror.h"
#include "path.h"
#include "progress_bar.h"
#include "stream_info.h"

#define MARK_SIZE 80

static dw_status open_follower(cli_source *s, dw_error *err)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = s->into;
    options.base = s->base;
    options.trust = s->trust;
    options.n_threads = s->session->n_threads;
    options.open_store = cli_store_open_fork;
    options.open_context = &s->fork_opener;
    options.no_files = true;
    return dw_follower_open(&s->follower, s->store, &options, err);
}

static dw_status open_foreign(cli_source *s, dw_error *err)
{
    const dw_format *format;
    const dw_foreign_options options = {.work_dir = s->work,
                                        .n_threads = s->session->n_threads};
    dw_status status = dw_format_detect(&format, s->store, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_NOT_FOUND, s->url,
                       "neither a deltawire stream nor versions of trl or slime are "
                       "here");
    if (status == DW_OK && (s->trust.n_keys > 0 || s->trust.stream))
        status = dw_fail(err, DW_UNTRUSTED, s->url,
                         "versions of %s carry no signature and no stream id: "
                         "leave --trust and --stream out",
                         dw_format_name(format));
    return status == DW_OK ? dw_foreign_open(&s->foreign, s->store, format, &options, err)
                           : status;
}

dw_status cli_source_open(cli_source *s, dw_error *err)
{
    s->fork_opener = (cli_fork_opener){s->url, s->options};
    dw_status status = cli_path_make_directories(s->into, err);
    if (status == DW_OK)
        status = cli_store_open_at(&s->store, s->url, s->options, err);
    if (status == DW_OK)
        status = open_follower(s, err);
    if (status == DW_NOT_FOUND && s->store)
        status = open_foreign(s, err);
    if (status != DW_OK)
        cli_source_close(s);
    return status;
}

void cli_source_close(cli_source *s)
{
    dw_foreign_close(s->foreign);
    dw_follower_close(s->follower);
    dw_store_close(s->store);
    s->foreign = NULL;
    s->follower = NULL;
    s->store = NULL;
}

bool cli_source_is_foreign(const cli_source *s)
{
    return s->foreign != NULL;
}

/* ---- which versions there are ---- */

static dw_status next_of_stream(cli_source *s, uint64_t after, uint64_t *version,
                                dw_error *err)
{
    uint64_t newest, floor = 0;
    dw_status status = dw_follower_poll(s->follower, &newest, err);
    if (status == DW_NOT_FOUND)
        return DW_OK;
    if (status != DW_OK || (after != DW_NO_VERSION && newest <= after))
        return status;
    status = dw_stream_floor(dw_follower_stream(s->follower), &floor, err);
    if (status != DW_OK)
        return status;
    const uint64_t wanted = after == DW_NO_VERSION ? 0 : after + 1;
    *version = wanted < floor ? floor : wanted;
    return DW_OK;
}

/* The version to begin with: the first whole one or, if the user named the base, the base
 * that the first version starts from. */
static dw_status first_of_foreign(cli_source *s, const dw_foreign_version *versions,
                                  size_t n, uint64_t *version, dw_error *err)
{
    dw_foreign_facts facts;
    for (size_t i = 0; i < n; i++) {
        dw_status status = dw_foreign_look(s->foreign, versions[i].version, &facts, err);
        if (status != DW_OK)
            return status;
        if (facts.is_whole || (s->base && i == 0)) {
            *version = facts.is_whole ? versions[i].version : facts.base;
            return DW_OK;
        }
    }
    return n == 0 ? DW_OK
                  : dw_fail(err, DW_NOT_FOUND, s->url,
                            "none of its %zu versions is whole: name the checkpoint "
                            "that the first one starts from with --base",
                            n);
}

static dw_status next_of_foreign(cli_source *s, uint64_t after, uint64_t *version,
                                 dw_error *err)
{
    const dw_foreign_version *versions;
    size_t n;
    dw_status status = dw_foreign_list(s->foreign, &versions, &n, err);
    if (status != DW_OK)
        return status;
    if (after == DW_NO_VERSION)
        return first_of_foreign(s, versions, n, version, err);
    for (size_t i = 0; i < n && *version == DW_NO_VERSION; i++)
        if (versions[i].version > after)
            *version = versions[i].version;
    return DW_OK;
}

dw_status cli_source_next(cli_source *s, uint64_t after, uint64_t *version, dw_error *err)
{
    *version = DW_NO_VERSION;
    return s->follower ? next_of_stream(s, after, version, err)
                       : next_of_foreign(s, after, version, err);
}

/* ---- going there ---- */

/* Fills the model with the base that the user named, as the version that the first one
 * starts from. */
static dw_status take_base(cli_source *s, dw_error *err)
{
    const dw_foreign_version *versions;
    size_t n;
    dw_foreign_facts facts = {.is_whole = true};
    dw_checkpoint *ckpt = NULL;
    dw_status status = dw_foreign_list(s->foreign, &versions, &n, err);
    if (status == DW_OK && n > 0)
        status = dw_foreign_look(s->foreign, versions[0].version, &facts, err);
    if (status != DW_OK || facts.is_whole)
        return status;
    status = cli_weights_check_whole(s->base, err);
    if (status == DW_OK)
        status = dw_checkpoint_open(&ckpt, s->base, DW_CHECKPOINT_READ, err);
    if (status == DW_OK) {
        const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
        status = dw_foreign_fill(s->foreign, tensors, n, facts.base, NULL, NULL, err);
    }
    dw_checkpoint_close(ckpt);
    return status;
}

/* Skips a version that does not decode, if a later restart made it unneeded. */
static dw_status go_in_stream(cli_source *s, uint64_t version,
                              const dw_progress *progress, dw_error *err)
{
    if (dw_follower_version(s->follower) == version)
        return DW_OK;
    dw_status status = dw_follower_sync(s->follower, version, progress, NULL, err);
    if (status != DW_CORRUPT && status != DW_NOT_FOUND)
        return status;
    dw_error unread;
    uint64_t restart;
    return cli_restart_after(&restart, dw_follower_stream(s->follower), version,
                             &unread) == DW_OK &&
                   restart != DW_NO_VERSION
               ? dw_follower_sync(s->follower, restart, progress, NULL, err)
               : status;
}

dw_status cli_source_go(cli_source *s, uint64_t version, const dw_progress *progress,
                        dw_error *err)
{
    if (s->follower)
        return go_in_stream(s, version, progress, err);
    dw_status status =
        s->base && dw_foreign_at(s->foreign) == DW_NO_VERSION ? take_base(s, err) : DW_OK;
    return status == DW_OK ? dw_foreign_go(s->foreign, version, progress, err) : status;
}

typedef struct seed {
    dw_store *store;
    uint64_t version;
    const cli_source *source;
    const dw_progress *progress;
} seed;

/* Follows the stream that TO is. */
static dw_status follow_seed(void *context, const dw_tensor *tensors, size_t n,
                             dw_error *err)
{
    const seed *from = context;
    dw_follower *follower = NULL;
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = tensors;
    options.n_tensors = n;
    options.tensors_empty = true;
    options.spool_dir = from->source->work;
    options.n_threads = from->source->session->n_threads;
    dw_status status = dw_follower_open(&follower, from->store, &options, err);
    if (status == DW_OK)
        status = dw_follower_sync(follower, from->version, from->progress, NULL, err);
    dw_follower_close(follower);
    return status;
}

dw_status cli_source_seed(cli_source *s, dw_store *to, uint64_t to_version,
                          uint64_t version, const dw_progress *progress, dw_error *err)
{
    dw_stream *stream;
    seed from = {to, to_version, s, progress};
    dw_status status = dw_stream_open(&stream, to, NULL, err);
    if (status != DW_OK)
        return status;
    size_t n;
    const dw_tensor *table = dw_stream_tensors(stream, &n);
    status = dw_foreign_fill(s->foreign, table, n, version, follow_seed, &from, err);
    dw_stream_close(stream);
    return status;
}

/* ---- the weights ---- */

const dw_tensor *cli_source_tensors(const cli_source *s, size_t *n_tensors)
{
    return s->follower ? dw_follower_tensors(s->follower, n_tensors)
                       : dw_foreign_tensors(s->foreign, n_tensors);
}

uint64_t cli_source_version(const cli_source *s)
{
    return s->follower ? dw_follower_version(s->follower) : dw_foreign_at(s->foreign);
}

dw_status cli_source_commit(const cli_source *s, dw_version_info *out, dw_error *err)
{
    return dw_stream_version(dw_follower_stream(s->follower), cli_source_version(s), out,
                             err);
}

dw_status cli_source_state(const cli_source *s, dw_digest *state, dw_error *err)
{
    if (s->follower) {
        *state = dw_follower_state(s->follower);
        return DW_OK;
    }
    size_t n;
    const dw_tensor *tensors = dw_foreign_tensors(s->foreign, &n);
    dw_digest *digests = calloc(n + 1, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, state, tensors, n,
                                                   s->session->n_threads, NULL, err)
                               : dw_fail_memory(err, s->url);
    free(digests);
    return status;
}

/* ---- notes ---- */

/* The end of the notes: the mark of the version, or nothing. */
static void write_mark(char out[MARK_SIZE], const uint8_t *mark)
{
    char hex[2 * DW_FOREIGN_MARK + 1];
    out[0] = '\0';
    if (!mark)
        return;
    dw_hex_encode(hex, mark, DW_FOREIGN_MARK);
    snprintf(out, MARK_SIZE, ", sha256 %s", hex);
}

void cli_source_write_notes(const cli_source *s, char *notes, size_t n_bytes)
{
    char mark[MARK_SIZE];
    write_mark(mark, dw_foreign_mark(s->foreign));
    snprintf(notes, n_bytes, CLI_NOTES_BEGIN "%" PRIu64 " of %.850s%s",
             cli_source_version(s), dw_store_url(s->store), mark);
}

dw_status cli_source_check_notes(cli_source *s, uint64_t version, const char *notes,
                                 dw_error *err)
{
    char mark[MARK_SIZE];
    dw_foreign_facts facts;
    const dw_foreign_version *unread;
    size_t n;
    dw_status status = dw_foreign_list(s->foreign, &unread, &n, err);
    if (status == DW_OK)
        status = dw_foreign_look(s->foreign, version, &facts, err);
    if (status == DW_NOT_FOUND)
        return DW_OK; /* it is the base, or was removed */
    write_mark(mark, facts.mark);
    if (status != DW_OK || dw_name_ends(notes, mark))
        return status;
    return dw_fail(err, DW_STALE, s->url,
                   "its version %" PRIu64 " is not the one that was mirrored: a run was "
                   "started again. Name another place, or remove what the new run wrote",
                   version);
}
