/* Copies a stream to another store.
 *
 * Records are copied byte for byte, so that hashes and signatures stay valid. Each comes
 * after what it names: objects, then their commit, then the shortcuts to it with their
 * objects, version by version; the hints come last. So the copy is always a valid stream
 * that ends a little earlier, and an interrupted copy can be continued.
 *
 * Names show what the copy has: a record that is in both is read only if the copy lacks
 * an object of its version.
 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "store/store.h"
#include "stream/listing.h"
#include "stream/stream.h"
#include "stream/transfer.h"

#define ROUNDS 8 /* if the source is collected while it is copied */

typedef struct copier {
    dw_stream *stream;
    dw_store *to;
    const dw_progress *progress;
    dw_copy_report report;

    uint64_t head;
    uint64_t floor;             /* of both; nothing below it is copied */
    dw_listing commits;         /* here */
    dw_listing shortcuts;       /* here */
    dw_listing here;            /* objects here */
    size_t next_here;           /* objects of finished versions come before it */
    dw_listing there;           /* objects of the copy */
    dw_listing files;           /* companion files here; marked: the copy has it */
    dw_listing there_shortcuts; /* shortcuts of the copy */
    dw_listing there_known;     /* commits of the copy */
    bool collected;             /* an object to copy is gone: look again */
    uint64_t n_total;           /* bytes that seem to be missing there */
} copier;

static void release(copier *c)
{
    dw_listing_release(&c->commits);
    dw_listing_release(&c->shortcuts);
    dw_listing_release(&c->here);
    dw_listing_release(&c->there);
    dw_listing_release(&c->files);
    dw_listing_release(&c->there_shortcuts);
    dw_listing_release(&c->there_known);
}

/* ---- records ---- */

/* Whether the two stores hold the same bytes under KEY. */
static dw_status same_there(copier *c, const char *key, const dw_writer *bytes,
                            bool *same, dw_error *err)
{
    dw_writer there;
    dw_status status = dw_record_fetch(&there, c->to, key, err);
    *same = status == DW_OK && there.n_bytes == bytes->n_bytes &&
            memcmp(there.bytes, bytes->bytes, there.n_bytes) == 0;
    dw_writer_release(&there);
    return status;
}

/* Creates KEY there as it is here; *SAME is false if something else is there. */
static dw_status copy_record(copier *c, const char *key, bool *same, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_writer bytes;
    dw_record_seal seal;
    *same = true;
    dw_status status = dw_record_fetch(&bytes, c->stream->store, key, err);
    if (status == DW_OK)
        status = dw_record_check(
            &seal, bytes.bytes, bytes.n_bytes,
            dw_store_where(c->stream->store, key, where, sizeof where), err);
    if (status == DW_OK) {
        status = dw_store_put_bytes(c->to, key, bytes.bytes, bytes.n_bytes, DW_PUT_CREATE,
                                    err);
        if (status == DW_CONFLICT)
            status = same_there(c, key, &bytes, same, err);
    }
    dw_writer_release(&bytes);
    return status;
}

static dw_status copy_stream_record(copier *c, dw_error *err)
{
    bool same;
    dw_status status = copy_record(c, DW_KEY_STREAM, &same, err);
    if (status == DW_OK && !same)
        status = dw_fail(err, DW_CONFLICT, dw_store_url(c->to),
                         "another stream is here: it cannot become a copy of %s. Name "
                         "an empty place",
                         dw_store_url(c->stream->store));
    return status == DW_OK ? dw_store_require(c->to, DW_KEY_STREAM, err) : status;
}

static dw_status copy_epochs(copier *c, dw_error *err)
{
    dw_listing epochs, there = {0};
    uint64_t epoch;
    dw_status status = dw_listing_load(&epochs, c->stream->store, "epochs/", err);
    if (status == DW_OK)
        status = dw_listing_load(&there, c->to, "epochs/", err);
    for (size_t i = 0; status == DW_OK && i < epochs.n; i++) {
        const char *key = epochs.items[i].key;
        if (!dw_key_is_epoch(key, &epoch))
            continue;
        /* all but the newest that both have were compared when they were copied */
        const dw_listed *next =
            i + 1 < epochs.n ? dw_listing_find(&there, epochs.items[i + 1].key) : NULL;
        if (next && dw_listing_find(&there, key))
            continue;
        bool same;
        status = copy_record(c, key, &same, err);
        if (status == DW_OK && !same)
            status = dw_fail(err, DW_CONFLICT, dw_store_url(c->to),
                             "epoch %" PRIu64 " is another's here: somebody opened the "
                             "copy for writing. Copy to a new place",
                             epoch);
    }
    dw_listing_release(&epochs);
    dw_listing_release(&there);
    return status;
}

/* ---- objects ---- */

static dw_status copy_bytes(copier *c, const dw_object *object, dw_error *err)
{
    dw_blob blob;
    dw_share share = {c->progress, c->report.n_bytes, c->n_total};
    const dw_progress hook = dw_share_hook(&share);
    dw_status status = dw_object_fetch(&blob, c->stream->store, object, NULL, &hook, err);
    if (status != DW_OK)
        return status;
    /* names are never used twice: what is there and has another size is damaged */
    const dw_source source = {.n_bytes = blob.n_bytes, .bytes = blob.bytes};
    status = dw_store_put(c->to, object->key, &source, DW_PUT_REPLACE, NULL, err);
    dw_blob_release(&blob);
    if (status == DW_OK)
        status = dw_store_confirm(c->to, object->key, object->n_bytes, err);
    if (status == DW_OK) {
        c->report.n_objects++;
        c->report.n_bytes += object->n_bytes;
    }
    return status;
}

static dw_status copy_object(copier *c, const dw_object *object, dw_error *err)
{
    if (!dw_listing_has(&c->there, object))
        return copy_bytes(c, object, err);
    c->report.n_present++;
    return DW_OK;
}

/* A companion file, unless the copy has it. Several commits may name it. */
static dw_status copy_file(copier *c, const dw_file_entry *file, dw_error *err)
{
    dw_listed *listed = dw_listing_find(&c->files, file->key);
    if (listed && listed->mark && listed->n_bytes == file->n_bytes)
        return DW_OK;
    dw_object object = {.n_bytes = file->n_bytes};
    memcpy(object.key, file->key, sizeof object.key);
    memcpy(object.sha256, file->sha256, sizeof object.sha256);
    dw_status status = copy_bytes(c, &object, err);
    if (status == DW_OK && listed)
        listed->mark = 1;
    return status;
}

/* Those of COMMIT. One that is gone may have been collected meanwhile. */
static dw_status copy_files(copier *c, const dw_commit_record *commit, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < commit->files.n; i++)
        status = copy_file(c, &commit->files.items[i], err);
    uint64_t floor;
    if (status == DW_NOT_FOUND && dw_stream_floor(c->stream, &floor, NULL) == DW_OK &&
        commit->version < floor) {
        c->collected = true;
        return DW_OK;
    }
    return status;
}

/* Whether the copy has every companion file of VERSION that is here; *N of them. The
 * commit at the floor may also need some of older versions. */
static bool has_files(copier *c, uint64_t version, uint64_t *n)
{
    uint64_t found;
    for (size_t i = 0; i < c->files.n; i++) {
        const dw_listed *item = &c->files.items[i];
        if (!dw_key_is_file(item->key, &found))
            continue;
        if (found > version)
            break;
        if (found < version && version != c->floor)
            continue;
        if (!item->mark)
            return false;
        ++*n;
    }
    return true;
}

/* The objects of EDGE. One that is gone may have been collected meanwhile. */
static dw_status copy_objects(copier *c, const dw_edge *edge, const dw_objects *objects,
                              dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < objects->n; i++)
        status = copy_object(c, &objects->items[i], err);
    if (status != DW_NOT_FOUND)
        return status;
    uint64_t floor;
    dw_error ignored;
    uint64_t lowest = edge->from == DW_NO_VERSION ? edge->to : edge->from;
    if (dw_stream_floor(c->stream, &floor, &ignored) == DW_OK && lowest < floor) {
        c->collected = true;
        return DW_OK;
    }
    return status;
}

/* Whether the copy has every object of VERSION that is here, of its commit or of the
 * shortcuts to it; *N of them. Versions are asked for in ascending order. */
static bool has_all(copier *c, uint64_t version, bool of_shortcut, uint64_t *n)
{
    uint64_t found;
    bool is_of_shortcut;
    *n = 0;
    for (size_t i = c->next_here; i < c->here.n; i++) {
        const dw_listed *item = &c->here.items[i];
        if (!dw_key_is_object(item->key, &found, &is_of_shortcut))
            continue;
        if (found > version)
            break;
        if (found < version) {
            c->next_here = i + 1;
            continue;
        }
        if (is_of_shortcut != of_shortcut)
            continue;
        const dw_listed *there = dw_listing_find(&c->there, item->key);
        if (!there || there->n_bytes != item->n_bytes)
            return false;
        ++*n;
    }
    return true;
}

/* ---- versions ---- */

/* The lowest version that both have and that differs, below VERSION, which does. */
static dw_status find_fork(copier *c, uint64_t version, dw_error *err)
{
    bool same = false;
    while (!same && version > 0) {
        char key[DW_KEY_TEXT];
        dw_key_commit(key, version - 1);
        if (!dw_listing_find(&c->commits, key) || !dw_listing_find(&c->there_known, key))
            break;
        dw_status status = copy_record(c, key, &same, err);
        if (status != DW_OK)
            return status;
        if (!same)
            version--;
    }
    return dw_fail(err, DW_CONFLICT, dw_store_url(c->to),
                   "version %" PRIu64 " is another here than in %s: the copy got "
                   "versions of its own, or the stream was made again. Copy to a new "
                   "place",
                   version, dw_store_url(c->stream->store));
}

/* The copy's newest version must be one of the stream's: by the chain of hashes all
 * before it are then. */
static dw_status check_copy(copier *c, dw_error *err)
{
    uint64_t version, newest = DW_NO_VERSION;
    for (size_t i = 0; i < c->there_known.n; i++)
        if (dw_key_is_commit(c->there_known.items[i].key, &version))
            newest = version;
    if (newest == DW_NO_VERSION)
        return DW_OK;
    char key[DW_KEY_TEXT];
    dw_key_commit(key, newest);
    bool same;
    dw_status status = copy_record(c, key, &same, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_CONFLICT, dw_store_url(c->to),
                       "the copy has version %" PRIu64 ", which %s does not have: it "
                       "got versions of its own. Copy to a new place",
                       newest, dw_store_url(c->stream->store));
    return status == DW_OK && !same ? find_fork(c, newest, err) : status;
}

static dw_status copy_commit(copier *c, uint64_t version, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_commit(key, version);
    uint64_t n = 0;
    const bool has_objects = c->floor == 0 || version > c->floor;
    uint64_t n_files = 0;
    if (dw_listing_find(&c->there_known, key) &&
        (!has_objects || has_all(c, version, false, &n)) &&
        (version < c->floor || has_files(c, version, &n_files))) {
        c->report.n_present += n + n_files;
        return DW_OK;
    }
    dw_commit_record commit;
    dw_status status = dw_stream_read_commit(c->stream, version, &commit, err);
    if (status != DW_OK)
        return status;
    const dw_edge edge = {.from = version > 0 ? version - 1 : DW_NO_VERSION,
                          .to = version};
    if (has_objects)
        status = copy_objects(c, &edge, &commit.objects, err);
    if (status == DW_OK && !c->collected && version >= c->floor)
        status = copy_files(c, &commit, err);
    dw_commit_record_release(&commit);
    if (status != DW_OK || c->collected || dw_listing_find(&c->there_known, key))
        return status;
    bool same;
    status = copy_record(c, key, &same, err);
    return status == DW_OK && !same ? find_fork(c, version, err) : status;
}

static dw_status copy_shortcut(copier *c, const char *key, const dw_edge *edge,
                               dw_error *err)
{
    dw_shortcut_record shortcut;
    dw_status status =
        dw_stream_read_shortcut(c->stream, edge->to, edge->from, &shortcut, err);
    if (status == DW_NOT_FOUND) { /* collected since it was listed */
        c->collected = edge->from == DW_NO_VERSION;
        return DW_OK;
    }
    if ((status == DW_CORRUPT || status == DW_UNTRUSTED || status == DW_UNSUPPORTED) &&
        (edge->from != DW_NO_VERSION || edge->to != c->floor))
        return DW_OK; /* of no use here, nor there: the commits lead past it */
    if (status != DW_OK)
        return status;
    bool same = true;
    /* the copy may have made this shortcut by itself, with objects of its own */
    if (!dw_listing_find(&c->there_shortcuts, key)) {
        status = copy_objects(c, edge, &shortcut.objects, err);
        if (status == DW_OK && !c->collected)
            status = copy_record(c, key, &same, err);
    } else {
        dw_writer bytes;
        status = dw_record_fetch(&bytes, c->stream->store, key, err);
        if (status == DW_OK)
            status = same_there(c, key, &bytes, &same, err);
        dw_writer_release(&bytes);
        if (status == DW_OK && same)
            status = copy_objects(c, edge, &shortcut.objects, err);
    }
    dw_shortcut_record_release(&shortcut);
    if (status == DW_NOT_FOUND &&
        dw_store_stat(c->stream->store, key, NULL, NULL, NULL) == DW_NOT_FOUND) {
        c->collected = true; /* the record went meanwhile */
        status = DW_OK;
    }
    return status;
}

/* Shortcuts are listed by the version they lead to: takes those to VERSION from *NEXT on.
 */
static dw_status copy_shortcuts_to(copier *c, uint64_t version, size_t *next,
                                   dw_error *err)
{
    dw_status status = DW_OK;
    uint64_t n;
    const bool is_complete = has_all(c, version, true, &n);
    bool all_known = is_complete;
    for (; status == DW_OK && !c->collected && *next < c->shortcuts.n; ++*next) {
        const char *key = c->shortcuts.items[*next].key;
        dw_edge edge = {0};
        if (!dw_key_is_shortcut(key, &edge.to, &edge.from))
            continue;
        if (edge.to > version)
            break;
        uint64_t lowest = edge.from == DW_NO_VERSION ? edge.to : edge.from;
        if (edge.to != version || lowest < c->floor ||
            (is_complete && dw_listing_find(&c->there_shortcuts, key)))
            continue;
        all_known = false;
        status = copy_shortcut(c, key, &edge, err);
    }
    if (all_known)
        c->report.n_present += n;
    return status;
}

/* All that are here, up to the head as it was when the listing was made. */
static dw_status copy_versions(copier *c, dw_error *err)
{
    uint64_t version = 0;
    for (size_t i = 0; i < c->commits.n; i++)
        if (dw_key_is_commit(c->commits.items[i].key, &version))
            break;
    dw_status status = DW_OK;
    size_t next_shortcut = 0;
    for (; status == DW_OK && !c->collected && version <= c->head; version++) {
        status = copy_commit(c, version, err);
        if (status == DW_NOT_FOUND)
            status = dw_fail(err, DW_CORRUPT, dw_store_url(c->stream->store),
                             "something of version %" PRIu64 " is missing. `deltawire "
                             "verify` says what",
                             version);
        if (status == DW_OK && !c->collected)
            status = copy_shortcuts_to(c, version, &next_shortcut, err);
    }
    return status;
}

/* ---- hints ---- */

static dw_status copy_floor(copier *c, uint64_t there, dw_error *err)
{
    if (c->floor <= there)
        return DW_OK;
    dw_floor_record record = {.version = c->floor};
    memcpy(record.stream, c->stream->record.stream, sizeof record.stream);
    dw_writer bytes = {0};
    dw_status status = dw_floor_record_write(&bytes, &record, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(c->to, DW_KEY_FLOOR, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}

/* The hint, less what is not in the copy yet. */
static dw_status copy_latest(copier *c, dw_error *err)
{
    dw_latest_record latest;
    dw_status status = dw_stream_read_latest(c->stream, &latest, err);
    if (status != DW_OK)
        return status;
    size_t kept = 0;
    for (size_t i = 0; i < latest.n_edges; i++)
        if (latest.edges[i].to <= c->head)
            latest.edges[kept++] = latest.edges[i];
    latest.n_edges = kept;
    if (latest.version != DW_NO_VERSION && latest.version > c->head)
        latest.version = c->head;
    dw_writer bytes = {0};
    if (latest.version != DW_NO_VERSION) {
        status = dw_latest_record_write(&bytes, &latest, err);
        if (status == DW_OK)
            status = dw_store_put_bytes(c->to, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                                        DW_PUT_REPLACE, err);
    }
    dw_writer_release(&bytes);
    dw_latest_record_release(&latest);
    return status;
}

/* ---- all of it ---- */

static void count_missing(copier *c)
{
    c->n_total = c->report.n_bytes;
    for (size_t i = 0; i < c->here.n; i++)
        if (!dw_listing_find(&c->there, c->here.items[i].key))
            c->n_total += c->here.items[i].n_bytes;
    for (size_t i = 0; i < c->files.n; i++)
        if (!c->files.items[i].mark)
            c->n_total += c->files.items[i].n_bytes;
}

/* Lists the companion files here, and marks those that the copy has. */
static dw_status look_at_files(copier *c, dw_error *err)
{
    dw_listing there = {0};
    dw_status status = dw_listing_load(&c->files, c->stream->store, "files/", err);
    if (status == DW_OK && c->files.n > 0)
        status = dw_listing_load(&there, c->to, "files/", err);
    for (size_t i = 0; status == DW_OK && i < c->files.n; i++) {
        const dw_listed *found = dw_listing_find(&there, c->files.items[i].key);
        c->files.items[i].mark = found && found->n_bytes == c->files.items[i].n_bytes;
    }
    dw_listing_release(&there);
    return status;
}

static dw_status look(copier *c, uint64_t *floor_there, dw_error *err)
{
    dw_store *here = c->stream->store;
    dw_stream there = {.store = c->to, .record = c->stream->record};
    dw_status status = dw_stream_find_head(c->stream, c->stream->head, &c->head, err);
    if (status == DW_OK)
        status = dw_listing_load(&c->commits, here, "commits/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->shortcuts, here, "ways/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->here, here, "objects/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->there, c->to, "objects/", err);
    if (status == DW_OK)
        status = look_at_files(c, err);
    if (status == DW_OK)
        status = dw_listing_load(&c->there_shortcuts, c->to, "ways/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->there_known, c->to, "commits/", err);
    if (status == DW_OK)
        status = dw_listing_floor(&c->shortcuts, c->stream, &c->floor, err);
    if (status == DW_OK)
        status = dw_listing_floor(&c->there_shortcuts, &there, floor_there, err);
    if (status == DW_OK)
        count_missing(c);
    if (status == DW_OK && *floor_there > c->floor)
        c->floor = *floor_there; /* the copy keeps less */
    c->collected = false;
    c->report.n_present = 0;
    c->next_here = 0;
    return status;
}

dw_status dw_stream_copy(dw_stream *stream, dw_store *to, const dw_progress *progress,
                         dw_copy_report *report, dw_error *err)
{
    copier c = {.stream = stream, .to = to, .progress = progress, .collected = true};
    dw_status status = copy_stream_record(&c, err);
    uint64_t floor_there = 0;
    for (unsigned round = 0; status == DW_OK && c.collected && round < ROUNDS; round++) {
        release(&c);
        status = look(&c, &floor_there, err);
        if (status == DW_OK)
            status = check_copy(&c, err);
        if (status == DW_OK)
            status = copy_epochs(&c, err);
        if (status == DW_OK)
            status = copy_versions(&c, err);
    }
    if (status == DW_OK && c.collected)
        status = dw_fail(err, DW_CONFLICT, dw_store_url(stream->store),
                         "the stream is collected faster than it can be copied");
    if (status == DW_OK)
        status = copy_floor(&c, floor_there, err);
    if (status == DW_OK)
        status = copy_latest(&c, err);
    c.report.head = c.head;
    if (report)
        *report = c.report;
    release(&c);
    return status;
}
