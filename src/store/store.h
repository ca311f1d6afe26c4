/* Functions for the layers above and for drivers, beside the public ones. */
#ifndef DW_STORE_STORE_H
#define DW_STORE_STORE_H

#include "base/bytes.h"
#include "deltawire/store.h"

#define DW_MAX_KEY 512 /* bytes of a key, without its NUL */

/* The rules for keys and prefixes, for messages. */
#define DW_KEY_RULE                                                                      \
    "only letters, digits and -_./=+@ are allowed, at most 512 bytes, with no empty "    \
    "part, '.' or '..' between slashes"

/* Appends a whole object of unknown size to OUT. One of more than MAX_BYTES is
 * DW_CORRUPT. After a failure OUT is as before. It may take several reads: if the object
 * is sometimes replaced, the caller must be able to notice a mix. */
dw_status dw_store_get_all(dw_store *store, const char *key, size_t max_bytes,
                           dw_writer *out, dw_error *err);

dw_status dw_store_put_bytes(dw_store *store, const char *key, const void *bytes,
                             size_t n_bytes, dw_put_mode mode, dw_error *err);

/* DW_UNAVAILABLE unless the store has KEY with N_BYTES: a put that was answered with
 * success proves nothing, because a proxy may have answered for the store. */
dw_status dw_store_confirm(dw_store *store, const char *key, uint64_t n_bytes,
                           dw_error *err);

/* From now on the store must hold KEY: see dw_store_driver.require. Stores that cannot
 * be absent in part, such as buckets, ignore it. */
dw_status dw_store_require(dw_store *store, const char *key, dw_error *err);

/* Room for any 'where': dw_error cuts longer ones too. */
#define DW_STORE_WHERE DW_ERROR_WHERE_SIZE

/* URL/KEY, for errors; returns BUF. */
const char *dw_store_where(const dw_store *store, const char *key, char *buf, size_t n);

/* ---- for drivers ---- */

/* Copies a range of SOURCE. The caller has checked that it is inside. */
dw_status dw_source_read(const dw_source *source, uint64_t offset, void *into,
                         size_t n_bytes, dw_error *err);

/* Reports progress. DW_CANCELLED if the caller's function asks to stop. PROGRESS may be
 * NULL. */
dw_status dw_store_progress(const dw_progress *progress, uint64_t bytes_done,
                            uint64_t bytes_total, const char *where, dw_error *err);

/* Whether KEY belongs in a listing. PREFIX is a string, AFTER may be NULL. */
bool dw_store_listed(const char *key, const char *prefix, const char *after);

#endif
