/* Records of other systems with any bytes; the first byte chooses the kind: TRL's delta
 * or anchor, slime's index. An accepted record has plain names of files, each with
 * entries, and no tensor twice. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compat/names.h"
#include "compat/peer_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static dw_status read_record(dw_peer_record *r, uint8_t kind, const void *bytes,
                             size_t n_bytes, dw_error *err)
{
    if (kind < 2)
        return dw_peer_read_trl(r, kind == 1, bytes, n_bytes, "fuzz", err);
    return dw_peer_read_slime(r, bytes, n_bytes, "fuzz", err);
}

static void check(const dw_peer_record *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_files; i++) {
        const char *name = strchr(r->files[i].key, '/');
        if (!name || !dw_peer_name_is_plain(name + 1) || r->files[i].first != n ||
            r->files[i].end <= n)
            abort();
        n = r->files[i].end;
    }
    if (n != r->n_entries)
        abort();
    for (size_t i = 0; i < n; i++)
        if (!r->entries[i].name || !r->entries[i].file)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    /* a separate allocation, so that a read past the end is noticed */
    uint8_t *record = malloc(n_bytes);
    memcpy(record, bytes + 1, n_bytes - 1);
    dw_peer_record *r = dw_alloc_zeroed(1, sizeof *r);
    dw_error err = {0};
    r->version = 7;
    r->named_base = DW_NO_VERSION;
    dw_status status = read_record(r, bytes[0] % 3, record, n_bytes - 1, &err);
    if (status == DW_OK)
        check(r);
    else if (err.code != status)
        abort();
    dw_peer_record_free(r);
    free(record);
    return 0;
}
