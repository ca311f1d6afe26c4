/* Companion files between a store and this process. */
#ifndef DW_STREAM_FILE_TRANSFER_H
#define DW_STREAM_FILE_TRANSFER_H

#include "stream/transfer.h"

/* Creates the object of ENTRY, whose size and SHA-256 are those of BYTES. An object that
 * is there already is this one, after a lost reply: names are never used twice. */
dw_status dw_file_put(dw_store *store, const dw_file_entry *entry, const void *bytes,
                      dw_error *err);

/* Fetches the file and proves its size and SHA-256; if they are wrong, fetches it once
 * more. DW_CORRUPT if they differ from the record, DW_NOT_FOUND if it is gone. The caller
 * releases OUT with dw_blob_release. PROGRESS may be NULL. */
dw_status dw_file_get(dw_blob *out, dw_store *store, const dw_file_entry *entry,
                      const char *spool_dir, const dw_progress *progress, dw_error *err);

#endif
