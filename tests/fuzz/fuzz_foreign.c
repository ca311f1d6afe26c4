/* Records of other systems with any bytes; the first byte chooses the kind: TRL's delta
 * or anchor, slime's index. An accepted index has plain names of files. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/formats_inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static dw_status read_index(const void *bytes, size_t n_bytes, dw_error *err)
{
    dw_slime_index index;
    dw_status status = dw_slime_index_parse(&index, 7, bytes, n_bytes, "fuzz", err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < index.map.n_files; i++)
        if (strchr(index.map.files[i], '/') || index.map.files[i][0] == '.')
            abort();
    for (size_t i = 0; i < index.map.n_entries; i++)
        if (!index.map.entries[i].name || !index.map.entries[i].file)
            abort();
    if (index.is_whole != (index.base == DW_NO_VERSION))
        abort();
    dw_slime_index_release(&index);
    return DW_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    /* a separate allocation, so that a read past the end is noticed */
    uint8_t *record = malloc(n_bytes);
    memcpy(record, bytes + 1, n_bytes - 1);
    dw_error err = {0};
    dw_foreign_facts facts;
    const uint8_t kind = bytes[0] % 3;
    const dw_foreign_version version = {7, kind == 1};
    dw_status status =
        kind < 2 ? dw_trl_head_parse(&facts, &version, record, n_bytes - 1, "fuzz", &err)
                 : read_index(record, n_bytes - 1, &err);
    if (status != DW_OK && err.code != status)
        abort();
    free(record);
    return 0;
}
