#include "stream/file_transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/store.h"

dw_status dw_file_put(dw_store *store, const dw_file_entry *entry, const void *bytes,
                      dw_error *err)
{
    dw_status status = dw_store_put_bytes(store, entry->key, bytes ? bytes : "",
                                          (size_t)entry->n_bytes, DW_PUT_CREATE, err);
    return status == DW_OK || status == DW_CONFLICT
               ? dw_store_confirm(store, entry->key, entry->n_bytes, err)
               : status;
}

/* Errors name the file, since its key does not. */
static dw_status explain(dw_status status, const dw_file_entry *entry, dw_error *err)
{
    if (!err || (status != DW_CORRUPT && status != DW_NOT_FOUND))
        return status;
    const dw_error fault = *err;
    return dw_fail(err, status, fault.where, "companion file '%s': %.400s", entry->name,
                   fault.text);
}

dw_status dw_file_get(dw_blob *out, dw_store *store, const dw_file_entry *entry,
                      const char *spool_dir, const dw_progress *progress, dw_error *err)
{
    dw_object object = {.n_bytes = entry->n_bytes};
    memcpy(object.key, entry->key, sizeof object.key);
    memcpy(object.sha256, entry->sha256, sizeof object.sha256);
    dw_status status = dw_object_fetch(out, store, &object, spool_dir, progress, err);
    return explain(status, entry, err);
}
