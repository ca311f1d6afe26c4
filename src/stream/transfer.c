#include "stream/transfer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "store/store.h"

#define PIECE_BYTES     (16u << 20)
#define IN_MEMORY_BYTES (16u << 20) /* larger blobs are mapped files */
#define READ_BYTES      (1u << 20)  /* of a source that has no bytes to point at */
#define RECORD_TRIES    3
#define OBJECT_TRIES    2

/* ---- blobs ---- */

static const char *or_temporary(const char *dir)
{
    if (!dir)
        dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

/* A nameless file in SPOOL_DIR. *FD is -1 if there is nothing to close. */
static dw_status open_spool(int *fd, const char *spool_dir, dw_error *err)
{
    const char *dir = or_temporary(spool_dir);
    *fd = -1;
    char *path = dw_join_path(dir, ".deltawire-spool-XXXXXX");
    if (!path)
        return dw_fail_memory(err, dir);
    dw_status status = DW_OK;
    *fd = mkstemp(path);
    if (*fd < 0 || fcntl(*fd, F_SETFD, FD_CLOEXEC) != 0 || unlink(path) != 0)
        status = dw_fail_errno(err, path, "make");
    dw_free(path);
    return status;
}

static dw_status map_nameless_file(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                                   dw_error *err)
{
    int fd;
    const char *dir = or_temporary(spool_dir);
    dw_status status = open_spool(&fd, dir, err);
    int failed = status == DW_OK ? posix_fallocate(fd, 0, (off_t)n_bytes) : 0;
    if (failed)
        status = dw_fail(err, DW_IO, dir,
                         "there is no room for %" PRIu64 " bytes of fetched objects: %s. "
                         "Free some, or name another directory",
                         n_bytes, strerror(failed));
    if (status == DW_OK) {
        out->bytes =
            mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (out->bytes == MAP_FAILED) {
            out->bytes = NULL;
            status = dw_fail_errno(err, dir, "map a spool file in");
        }
    }
    if (fd >= 0)
        close(fd);
    return status;
}

dw_status dw_blob_map(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                      dw_error *err)
{
    if (n_bytes > SIZE_MAX / 2)
        return dw_fail(err, DW_UNSUPPORTED, NULL, "an object of %" PRIu64 " bytes",
                       n_bytes);
    *out = (dw_blob){.n_bytes = (size_t)n_bytes, .mapped = true};
    return map_nameless_file(out, n_bytes, spool_dir, err);
}

dw_status dw_blob_make(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                       dw_error *err)
{
    if (n_bytes > IN_MEMORY_BYTES)
        return dw_blob_map(out, n_bytes, spool_dir, err);
    *out = (dw_blob){.n_bytes = (size_t)n_bytes};
    out->bytes = dw_alloc((size_t)n_bytes);
    return out->bytes ? DW_OK : dw_fail_memory(err, NULL);
}

void dw_blob_release(dw_blob *blob)
{
    if (blob->mapped && blob->bytes)
        munmap(blob->bytes, blob->n_bytes);
    else
        dw_free(blob->bytes);
    *blob = (dw_blob){0};
}

/* ---- records ---- */

dw_status dw_record_fetch(dw_writer *out, dw_store *store, const char *key, dw_error *err)
{
    *out = (dw_writer){0};
    dw_status status = DW_OK, found = DW_CORRUPT;
    for (unsigned i = 0; i < RECORD_TRIES && found != DW_OK; i++) {
        dw_writer_release(out);
        status = dw_store_get_all(store, key, DW_RECORD_BYTES, out, err);
        if (status != DW_OK)
            return status;
        dw_record_seal seal;
        found = dw_record_check(&seal, out->bytes, out->n_bytes, key, NULL);
        if (found == DW_NO_MEMORY)
            return dw_fail_memory(err, key);
    }
    return status;
}

/* ---- fetching ---- */

/* Work on one piece, on another thread while the next piece travels. */
typedef struct piece_work {
    pthread_t thread;
    bool running;
    dw_sha256 *hash;
    dw_object_sink sink; /* or NULL */
    void *context;
    uint64_t offset;
    const uint8_t *bytes;
    size_t n_bytes;
    dw_status status;
    dw_error error;
} piece_work;

static void *do_piece(void *context)
{
    piece_work *w = context;
    dw_sha256_update(w->hash, w->bytes, w->n_bytes);
    w->status =
        w->sink ? w->sink(w->context, w->offset, w->bytes, w->n_bytes, &w->error) : DW_OK;
    return NULL;
}

static dw_status finish_piece(piece_work *w, dw_error *err)
{
    if (w->running)
        pthread_join(w->thread, NULL);
    w->running = false;
    if (w->status != DW_OK && err)
        *err = w->error;
    return w->status;
}

static void begin_piece(piece_work *w)
{
    w->running = pthread_create(&w->thread, NULL, do_piece, w) == 0;
    if (!w->running)
        do_piece(w);
}

static dw_status get_piece(dw_store *store, const dw_object *object, uint64_t offset,
                           uint8_t *into, size_t n_bytes, const dw_progress *progress,
                           dw_error *err)
{
    dw_share share = {progress, offset, object->n_bytes};
    const dw_progress hook = dw_share_hook(&share);
    size_t n_read;
    dw_status status =
        dw_store_get(store, object->key, offset, into, n_bytes, &n_read, &hook, err);
    char where[DW_ERROR_WHERE_SIZE];
    dw_store_where(store, object->key, where, sizeof where);
    if (status == DW_OK && n_read != n_bytes)
        status = dw_fail(err, DW_CORRUPT, where,
                         "the object ends after %" PRIu64 " bytes of %" PRIu64,
                         offset + n_read, object->n_bytes);
    return status;
}

static dw_status check_hash(dw_store *store, const dw_object *object, dw_sha256 *hash,
                            dw_error *err)
{
    uint8_t found[DW_SHA256_BYTES];
    dw_status status = dw_sha256_final(hash, found, err);
    if (status != DW_OK || memcmp(found, object->sha256, sizeof found) == 0)
        return status;
    char where[DW_ERROR_WHERE_SIZE], wanted[DW_SHA256_TEXT], got[DW_SHA256_TEXT];
    dw_store_where(store, object->key, where, sizeof where);
    dw_hex_encode(wanted, object->sha256, DW_SHA256_BYTES);
    dw_hex_encode(got, found, DW_SHA256_BYTES);
    return dw_fail(err, DW_CORRUPT, where,
                   "the object was altered: its SHA-256 is %s, its record says %s", got,
                   wanted);
}

/* Fetches all of OBJECT in pieces: into WHOLE, or, if that is NULL, into two buffers
 * in turn, each of which has been handed on before it is used again. */
static dw_status fetch_once(dw_store *store, const dw_object *object, uint8_t *whole,
                            uint8_t *buffers, dw_object_sink sink, void *context,
                            const dw_progress *progress, dw_error *err)
{
    dw_sha256 hash;
    dw_status status = dw_sha256_init(&hash, err);
    if (status != DW_OK)
        return status;
    piece_work work = {.hash = &hash, .sink = sink, .context = context};
    unsigned turn = 0;
    uint64_t at = 0;
    while (status == DW_OK && at < object->n_bytes) {
        uint64_t left = object->n_bytes - at;
        size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        uint8_t *into = whole ? whole + at : buffers + (size_t)(turn++ % 2) * PIECE_BYTES;
        status = get_piece(store, object, at, into, n, progress, err);
        dw_status earlier = finish_piece(&work, status == DW_OK ? err : NULL);
        status = status == DW_OK ? earlier : status;
        if (status != DW_OK)
            break;
        work.offset = at;
        work.bytes = into;
        work.n_bytes = n;
        at += n;
        if (at < object->n_bytes)
            begin_piece(&work);
        else
            do_piece(&work);
    }
    dw_status last = finish_piece(&work, status == DW_OK ? err : NULL);
    status = status == DW_OK ? last : status;
    if (status == DW_OK)
        status = check_hash(store, object, &hash, err);
    dw_sha256_release(&hash);
    return status;
}

/* An altered object is fetched once more: the fault may be the network's. */
static dw_status fetch(dw_store *store, const dw_object *object, uint8_t *whole,
                       uint8_t *buffers, dw_object_sink sink, void *context,
                       const dw_progress *progress, dw_error *err)
{
    dw_status status = DW_CORRUPT;
    for (unsigned i = 0; i < OBJECT_TRIES && status == DW_CORRUPT; i++)
        status = fetch_once(store, object, whole, buffers, sink, context, progress, err);
    return status;
}

dw_status dw_object_fetch(dw_blob *out, dw_store *store, const dw_object *object,
                          const char *spool_dir, const dw_progress *progress,
                          dw_error *err)
{
    /* a record is not trusted with the size of an allocation */
    dw_status status = DW_OK;
    uint64_t n_bytes = object->n_bytes;
    *out = (dw_blob){0};
    if (n_bytes > IN_MEMORY_BYTES)
        status = dw_store_stat(store, object->key, &n_bytes, NULL, err);
    if (status == DW_OK && n_bytes != object->n_bytes)
        status = dw_fail(err, DW_CORRUPT, object->key,
                         "the object has %" PRIu64 " bytes, its record says %" PRIu64,
                         n_bytes, object->n_bytes);
    if (status == DW_OK)
        status = dw_blob_make(out, object->n_bytes, spool_dir, err);
    if (status == DW_OK)
        status = fetch(store, object, out->bytes, NULL, NULL, NULL, progress, err);
    if (status != DW_OK)
        dw_blob_release(out);
    return status;
}

dw_status dw_object_fetch_pieces(dw_store *store, const dw_object *object,
                                 dw_object_sink sink, void *context,
                                 const dw_progress *progress, dw_error *err)
{
    uint8_t *buffers = dw_alloc(object->n_bytes <= PIECE_BYTES ? (size_t)object->n_bytes
                                                               : 2 * (size_t)PIECE_BYTES);
    if (!buffers)
        return dw_fail_memory(err, object->key);
    dw_status status = fetch(store, object, NULL, buffers, sink, context, progress, err);
    dw_free(buffers);
    return status;
}

/* ---- putting ---- */

typedef struct source_hash {
    const dw_source *source;
    dw_object_sink watch; /* or NULL */
    void *context;
    uint8_t sha256[DW_SHA256_BYTES];
    uint64_t t_done_us;
    dw_status status;
    dw_error error;
} source_hash;

static void *hash_source(void *context)
{
    source_hash *h = context;
    const dw_source *s = h->source;
    dw_sha256 hash;
    h->status = dw_sha256_init(&hash, &h->error);
    if (h->status != DW_OK)
        return NULL;
    uint8_t *buffer = s->bytes ? NULL : dw_alloc(READ_BYTES);
    if (!s->bytes && !buffer)
        h->status = dw_fail_memory(&h->error, NULL);
    for (uint64_t at = 0, n; h->status == DW_OK && at < s->n_bytes; at += n) {
        n = s->n_bytes - at < READ_BYTES ? s->n_bytes - at : READ_BYTES;
        if (buffer)
            h->status = s->read(s->context, at, buffer, (size_t)n, &h->error);
        const uint8_t *bytes = buffer ? buffer : (const uint8_t *)s->bytes + at;
        if (h->status == DW_OK)
            dw_sha256_update(&hash, bytes, (size_t)n);
        if (h->status == DW_OK && h->watch)
            h->status = h->watch(h->context, at, bytes, (size_t)n, &h->error);
    }
    if (h->status == DW_OK)
        h->status = dw_sha256_final(&hash, h->sha256, &h->error);
    dw_sha256_release(&hash);
    dw_free(buffer);
    h->t_done_us = dw_clock_us();
    return NULL;
}

static dw_status put_hashed(dw_store *store, dw_object *object, source_hash *hash,
                            const dw_progress *progress, dw_error *err)
{
    const dw_source *source = hash->source;
    pthread_t thread;
    bool threaded = source->n_bytes > READ_BYTES &&
                    pthread_create(&thread, NULL, hash_source, hash) == 0;
    if (!threaded)
        hash_source(hash);
    dw_status status =
        dw_store_put(store, object->key, source, DW_PUT_CREATE, progress, err);
    if (threaded)
        pthread_join(thread, NULL);
    if (status == DW_OK || status == DW_CONFLICT) /* its own first try, perhaps */
        status = dw_store_confirm(store, object->key, source->n_bytes, err);
    if (status == DW_OK && hash->status != DW_OK) {
        status = hash->status;
        if (err)
            *err = hash->error;
    }
    object->n_bytes = source->n_bytes;
    memcpy(object->sha256, hash->sha256, sizeof object->sha256);
    return status;
}

dw_status dw_object_put(dw_store *store, dw_object *object, const dw_source *source,
                        uint64_t *hashed_us, const dw_progress *progress, dw_error *err)
{
    source_hash hash = {.source = source};
    dw_status status = put_hashed(store, object, &hash, progress, err);
    if (hashed_us)
        *hashed_us = hash.t_done_us;
    return status;
}

dw_status dw_object_put_watched(dw_store *store, dw_object *object,
                                const dw_source *source, dw_object_sink watch,
                                void *context, const dw_progress *progress, dw_error *err)
{
    source_hash hash = {.source = source, .watch = watch, .context = context};
    return put_hashed(store, object, &hash, progress, err);
}
