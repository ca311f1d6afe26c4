/* A version that was used must still be in the stream: a store that was rolled back, or
 * restored from an older copy, is refused. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/store.h"
#include "follow/follower.h"

/* A directory whose weights went back to an older version keeps the commit record of the
 * highest version that it had, byte for byte. */
#define HIGHEST_NAME ".deltawire/highest.json"

dw_status dw_stream_check_presence(dw_stream *s, dw_error *err)
{
    dw_status status = dw_store_stat(s->store, DW_KEY_STREAM, NULL, NULL, err);
    return status == DW_NOT_FOUND
               ? dw_fail(err, DW_UNAVAILABLE, dw_store_url(s->store),
                         "the stream is not there any more: it was removed, or its place "
                         "cannot be reached")
               : status;
}

static dw_status fail_rewritten(const char *url, uint64_t version, const char *holder,
                                dw_error *err)
{
    return dw_fail(err, DW_UNTRUSTED, url,
                   "version %" PRIu64 " is not the one that %.300s used: history was "
                   "rewritten. Find out by whom; to accept it, start again with an empty "
                   "directory",
                   version, holder);
}

dw_status dw_position_check(const dw_position *at, dw_stream *s, const char *holder,
                            dw_commit_record *commit, dw_error *err)
{
    const char *url = dw_store_url(s->store);
    dw_status status = dw_stream_read_commit(s, at->version, commit, err);
    if (status == DW_NOT_FOUND) {
        status = dw_stream_check_presence(s, err);
        return status != DW_OK
                   ? status
                   : dw_fail(err, DW_UNTRUSTED, url,
                             "version %" PRIu64 ", which %.300s used, is missing: the "
                             "store was rolled back, or is an older copy. Bring the "
                             "newer one back; to go on from what is there, start again "
                             "with an empty directory",
                             at->version, holder);
    }
    if (status != DW_OK)
        return status;
    if (memcmp(commit->seal.sha256, at->commit_sha256, DW_SHA256_BYTES) == 0)
        return DW_OK;
    dw_commit_record_release(commit);
    return fail_rewritten(url, at->version, holder, err);
}

/* ---- the highest version of a follower ---- */

static bool is_of_stream(const dw_follower *f, const dw_position *p)
{
    return p->version != DW_NO_VERSION &&
           strcmp(p->stream, f->stream->record.stream) == 0;
}

const dw_position *dw_follower_highest(const dw_follower *f)
{
    const dw_position *at = dw_target_at(f->weights);
    const bool has_at = is_of_stream(f, at);
    if (is_of_stream(f, &f->highest) && !(has_at && at->version >= f->highest.version))
        return &f->highest;
    return has_at ? at : &dw_nowhere;
}

dw_status dw_follower_load_highest(dw_follower *f, dw_error *err)
{
    f->highest = dw_nowhere;
    if (!f->options.into)
        return DW_OK;
    char *path = dw_join_path(f->options.into, HIGHEST_NAME);
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    dw_status status = path ? dw_read_file(&bytes, &n_bytes, path, DW_RECORD_BYTES, err)
                            : dw_fail_memory(err, f->options.into);
    dw_commit_record c;
    /* a damaged record is ignored: it must raise no false alarm */
    if (status == DW_OK &&
        dw_commit_record_parse(&c, bytes, n_bytes, path, NULL) == DW_OK) {
        f->highest = dw_position_of(&c);
        dw_commit_record_release(&c);
    }
    dw_free(bytes);
    dw_free(path);
    return status == DW_NOT_FOUND || status == DW_CORRUPT ? DW_OK : status;
}

/* Writes the commit of HIGHEST to PATH, after it is proven to be the one that was used.
 */
static dw_status keep_commit(const dw_follower *f, const dw_position *highest,
                             const char *path, dw_error *err)
{
    char key[DW_KEY_TEXT], where[DW_STORE_WHERE];
    dw_writer bytes = {0};
    dw_record_seal seal;
    dw_key_commit(key, highest->version);
    dw_store_where(f->stream->store, key, where, sizeof where);
    dw_status status = dw_record_fetch(&bytes, f->stream->store, key, err);
    if (status == DW_OK)
        status = dw_record_check(&seal, bytes.bytes, bytes.n_bytes, where, err);
    if (status == DW_OK &&
        memcmp(seal.sha256, highest->commit_sha256, DW_SHA256_BYTES) != 0)
        status = fail_rewritten(dw_store_url(f->stream->store), highest->version,
                                f->options.into, err);
    if (status == DW_OK)
        status = dw_write_file(path, bytes.bytes, bytes.n_bytes, err);
    dw_writer_release(&bytes);
    return status;
}

dw_status dw_follower_keep_used(dw_follower *f, const dw_position *was, dw_error *err)
{
    const dw_position highest = *was;
    if (!is_of_stream(f, was) ||
        (is_of_stream(f, &f->highest) && f->highest.version >= was->version))
        return DW_OK;
    dw_status status = DW_OK;
    if (f->options.into) {
        char *path = dw_join_path(f->options.into, HIGHEST_NAME);
        status = path ? keep_commit(f, &highest, path, err)
                      : dw_fail_memory(err, f->options.into);
        dw_free(path);
    }
    if (status == DW_OK)
        f->highest = highest;
    return status;
}

dw_status dw_follower_keep_highest(dw_follower *f, dw_error *err)
{
    return dw_follower_keep_used(f, dw_follower_highest(f), err);
}
