/* Patch files of any bytes: they are refused, or every store is inside the tensors. If
 * the first byte is odd, all hashes are made valid first. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "codec/patch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* Follows the table as far as it is valid, and sets the hashes of its segments. */
static void fix_segments(uint8_t *bytes, size_t table, size_t end)
{
    dw_reader r = dw_reader_of(bytes + table, end - table);
    unsigned widths[64] = {0};
    dw_read_bytes(&r, 9); /* the goal */
    dw_read_varint(&r);
    uint64_t n = dw_read_varint(&r);
    for (uint64_t i = 0; i < n && !r.failed; i++) {
        dw_read_bytes(&r, dw_read_varint(&r));
        uint8_t dtype = dw_read_u8(&r);
        if (i < 64 && dtype < DW_DTYPE_COUNT)
            widths[i] = dw_dtype_element((dw_dtype)dtype).width;
        for (uint64_t d = dw_read_varint(&r); d > 0 && !r.failed; d--)
            dw_read_varint(&r);
    }
    for (n = dw_read_varint(&r); n > 0 && !r.failed; n--) {
        uint64_t tensor = dw_read_varint(&r);
        dw_read_varint(&r);
        uint64_t n_stores = dw_read_varint(&r), offset = dw_read_varint(&r);
        const uint8_t *hash = dw_read_bytes(&r, 8);
        if (!hash || tensor >= 64 || n_stores > table || offset > table)
            return;
        uint64_t n_bytes =
            ((n_stores * 4 + 7) & ~7ull) + 2 * ((n_stores * widths[tensor] + 7) & ~7ull);
        if (n_bytes <= table - offset)
            dw_store64(bytes + (hash - bytes), XXH64(bytes + offset, n_bytes, 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = (int)syscall(SYS_memfd_create, "patch", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (n_bytes == 0)
        return 0;
    size_t n = n_bytes - 1;
    uint8_t *file = malloc(n + 1);
    memcpy(file, bytes + 1, n);
    if (bytes[0] & 1 && n >= 24) {
        memcpy(file, "DWPATCH1", 8);
        size_t table = (size_t)dw_load64(file + n - 16) % (n - 15);
        dw_store64(file + n - 16, table);
        fix_segments(file, table, n - 16);
        dw_store64(file + n - 8, XXH64(file + table, n - 16 - table, 0));
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, file, n, 0) != (ssize_t)n)
        abort();
    free(file);

    dw_patch *patch;
    dw_patch_goal goal;
    dw_error err;
    if (dw_patch_open(&patch, &goal, path, &err) != DW_OK)
        return 0;
    uint64_t n_changed = 0, n_data = 0;
    for (size_t i = 0; i < patch->n_segments; i++) {
        const dw_segment *s = &patch->segments[i];
        const dw_tensor *t = &patch->tensors[s->tensor];
        for (uint32_t k = 0; k < s->n; k++)
            if (s->first + s->positions[k] >= dw_tensor_units(t))
                abort();
        n_changed += s->n;
    }
    if (n_changed != dw_patch_changed(patch))
        abort();
    /* onto separate tensors, if those are small */
    dw_tensor *tensors = calloc(patch->n_tensors + 1, sizeof *tensors);
    for (size_t i = 0; i < patch->n_tensors; i++) {
        tensors[i] = patch->tensors[i];
        n_data += tensors[i].n_bytes < 1 << 20 ? tensors[i].n_bytes : 1 << 20;
    }
    if (n_data < 1 << 20) {
        for (size_t i = 0; i < patch->n_tensors; i++)
            tensors[i].data = calloc((size_t)tensors[i].n_bytes + 1, 1);
        dw_patch_check(patch, tensors, patch->n_tensors, 0, "fuzz", &err);
        dw_patch_apply(patch, tensors, patch->n_tensors, 1, &err);
        for (size_t i = 0; i < patch->n_tensors; i++)
            free(tensors[i].data);
    }
    free(tensors);
    dw_patch_free(patch);
    return 0;
}
