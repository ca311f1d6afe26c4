/* Objects between a store and this process, their SHA-256 taken on the way, and records.
 */
#ifndef DW_STREAM_TRANSFER_H
#define DW_STREAM_TRANSFER_H

#include "deltawire/store.h"
#include "stream/record.h"

/* The bytes of a fetched object: in memory, or, if they are many, in a nameless file
 * that is mapped. */
typedef struct dw_blob {
    uint8_t *bytes; /* aligned for any type */
    size_t n_bytes;
    bool mapped;
} dw_blob;

/* Room for N bytes; SPOOL_DIR takes the file, NULL: TMPDIR or /tmp. */
dw_status dw_blob_make(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                       dw_error *err);
/* In a file, however few. */
dw_status dw_blob_map(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                      dw_error *err);
void dw_blob_release(dw_blob *blob);

/* Reads the record under KEY whole. One that comes damaged is read again, as a bit may
 * have flipped on the way; what stays damaged is handed out for its parser to refuse.
 * The caller releases OUT, whatever the outcome. */
dw_status dw_record_fetch(dw_writer *out, dw_store *store, const char *key,
                          dw_error *err);

/* Fetches a whole object and proves its size and SHA-256; if they are wrong, fetches it
 * once more. DW_CORRUPT if they differ from the record, DW_NOT_FOUND if it is gone. */
dw_status dw_object_fetch(dw_blob *out, dw_store *store, const dw_object *object,
                          const char *spool_dir, const dw_progress *progress,
                          dw_error *err);

/* The same for a companion file. Errors name it, since its key does not (files.c). */
dw_status dw_file_fetch(dw_blob *out, dw_store *store, const dw_file_entry *entry,
                        const char *spool_dir, const dw_progress *progress,
                        dw_error *err);

/* Takes bytes of an object in order, before its SHA-256 is known to be right: if it is
 * not, the object comes once more, from offset 0 on. */
typedef dw_status (*dw_object_sink)(void *context, uint64_t offset, const uint8_t *bytes,
                                    size_t n_bytes, dw_error *err);

/* The same piece by piece, with memory for two pieces: the next is fetched while one is
 * hashed and handed on. */
dw_status dw_object_fetch_pieces(dw_store *store, const dw_object *object,
                                 dw_object_sink sink, void *context,
                                 const dw_progress *progress, dw_error *err);

/* Puts SOURCE under object->key and fills its n_bytes and sha256; the hash is taken by
 * another thread while the bytes travel. An object of that name and size whose reply
 * was lost is this one: names are never used twice. HASHED_US, which may be NULL, takes
 * the dw_clock_us() at which the hash was known. */
dw_status dw_object_put(dw_store *store, dw_object *object, const dw_source *source,
                        uint64_t *hashed_us, const dw_progress *progress, dw_error *err);

/* The same, and WATCH sees the very bytes that the hash is taken of, in order. So its
 * findings hold for every object with that hash. */
dw_status dw_object_put_watched(dw_store *store, dw_object *object,
                                const dw_source *source, dw_object_sink watch,
                                void *context, const dw_progress *progress,
                                dw_error *err);

#endif
