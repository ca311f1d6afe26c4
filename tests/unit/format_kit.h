/* Buckets of TRL and slime in a store, as those systems write them, and the
 * expected weights of each version. */
#ifndef DW_TEST_FORMAT_KIT_H
#define DW_TEST_FORMAT_KIT_H

#include <inttypes.h>
#include <zstd.h>

#include "formats/formats_inside.h"
#include "formats/frame.h"
#include "tensor/safetensors.h"
#include "unit/stream_kit.h"

#define PEER_TENSORS  3
#define PEER_VERSIONS 6 /* they start from version 0 */
#define PEER_BYTES    192

static const uint64_t peer_dims[] = {8, 10, 9, 6};
static dw_tensor peer_model[PEER_VERSIONS + 1][PEER_TENSORS]; /* names ascending */
static uint8_t peer_bytes[PEER_VERSIONS + 1][PEER_BYTES];

/* A few elements of each version differ; the last tensor changes only in even ones. */
static inline void peer_kit_make(void)
{
    for (unsigned v = 0; v <= PEER_VERSIONS; v++) {
        uint8_t *at = peer_bytes[v];
        for (size_t i = 0; i < PEER_BYTES && v == 0; i++)
            at[i] = (uint8_t)(i * 37 + 11);
        if (v > 0)
            memcpy(at, peer_bytes[v - 1], PEER_BYTES);
        for (size_t i = v; i < PEER_BYTES && v > 0; i += 11)
            if (i < 180 || v % 2 == 0)
                at[i] = (uint8_t)(at[i] + 2 * v + 1);
        peer_model[v][0] = (dw_tensor){.name = "a.weight",
                                       .dtype = DW_BF16,
                                       .n_dims = 2,
                                       .dims = peer_dims,
                                       .n_bytes = 160,
                                       .data = at};
        peer_model[v][1] = (dw_tensor){.name = "b.norm",
                                       .dtype = DW_BF16,
                                       .n_dims = 1,
                                       .dims = peer_dims + 2,
                                       .n_bytes = 18,
                                       .data = at + 160};
        peer_model[v][2] = (dw_tensor){.name = "c.rare",
                                       .dtype = DW_BF16,
                                       .n_dims = 1,
                                       .dims = peer_dims + 3,
                                       .n_bytes = 12,
                                       .data = at + 180};
    }
}

static inline void peer_put(dw_store *store, const char *key, const void *bytes,
                            size_t n_bytes)
{
    dw_error err = {0};
    assert_ok(dw_store_put_bytes(store, key, bytes, n_bytes, DW_PUT_REPLACE, &err), &err);
}

static inline void peer_put_text(dw_store *store, const char *key, const char *text)
{
    peer_put(store, key, text, strlen(text));
}

/* A safetensors file of these tensors, in this order. */
static inline void peer_put_file(dw_store *store, const char *key,
                                 const dw_tensor *tensors, size_t n,
                                 const dw_pair *metadata, size_t n_metadata)
{
    dw_writer file = {0};
    dw_error err = {0};
    assert_ok(dw_safetensors_header(&file, tensors, n, metadata, n_metadata, key, &err),
              &err);
    for (size_t i = 0; i < n; i++)
        dw_write_bytes(&file, tensors[i].data, (size_t)tensors[i].n_bytes);
    peer_put(store, key, file.bytes, file.n_bytes);
    dw_writer_release(&file);
}

/* ---- TRL ---- */

/* The first N tensors as an anchor. */
static inline void peer_put_anchor(dw_store *store, unsigned v, size_t n)
{
    char key[64], number[16];
    snprintf(key, sizeof key, "anchors/step_%06u.safetensors", v);
    snprintf(number, sizeof number, "%u", v);
    const dw_pair metadata[] = {{"format", "sparse_weight_patch"},
                                {"version", "1"},
                                {"sparse", "False"},
                                {"model_version", number},
                                {"encoding", "gap_delta"}};
    peer_put_file(store, key, peer_model[v], n, metadata, 5);
}

typedef struct peer_pairs {
    dw_tensor tensors[2 * PEER_TENSORS];
    char names[2 * PEER_TENSORS][32];
    uint64_t counts[PEER_TENSORS];
    int32_t indices[PEER_TENSORS][128];
    uint16_t values[PEER_TENSORS][128];
    size_t n;
} peer_pairs;

static inline void peer_make_pair(peer_pairs *p, const dw_tensor *old,
                                  const dw_tensor *next)
{
    const size_t k = p->n / 2;
    const uint16_t *a = old->data, *b = next->data;
    uint64_t n = 0;
    for (int32_t i = 0; (uint64_t)i < next->n_bytes / 2; i++)
        if (a[i] != b[i]) {
            p->indices[k][n] = i;
            p->values[k][n++] = b[i];
        }
    if (n == 0)
        return;
    p->counts[k] = n;
    snprintf(p->names[p->n], sizeof p->names[0], "%s.idx", next->name);
    snprintf(p->names[p->n + 1], sizeof p->names[0], "%s.val", next->name);
    p->tensors[p->n] = (dw_tensor){.name = p->names[p->n],
                                   .dtype = DW_I32,
                                   .n_dims = 1,
                                   .dims = &p->counts[k],
                                   .n_bytes = 4 * n,
                                   .data = p->indices[k]};
    p->tensors[p->n + 1] = (dw_tensor){.name = p->names[p->n + 1],
                                       .dtype = DW_BF16,
                                       .n_dims = 1,
                                       .dims = &p->counts[k],
                                       .n_bytes = 2 * n,
                                       .data = p->values[k]};
    p->n += 2;
}

static inline void peer_put_delta(dw_store *store, unsigned from, unsigned v,
                                  const char *encoding)
{
    char key[64], number[16];
    static peer_pairs p;
    p.n = 0;
    for (size_t t = 0; t < PEER_TENSORS; t++)
        peer_make_pair(&p, &peer_model[from][t], &peer_model[v][t]);
    snprintf(key, sizeof key, "deltas/step_%06u.safetensors", v);
    snprintf(number, sizeof number, "%u", v);
    const dw_pair metadata[] = {{"format", "sparse_weight_patch"},
                                {"version", "1"},
                                {"sparse", "True"},
                                {"model_version", number},
                                {"encoding", encoding}};
    peer_put_file(store, key, p.tensors, p.n, metadata, 5);
}

/* ---- packed tensors ---- */

typedef struct peer_frame {
    uint8_t bytes[4096];
    uint64_t n;
    char checksum[DW_CHECKSUM_TEXT];
} peer_frame;

static inline void peer_pack(peer_frame *out, const void *bytes, size_t n_bytes)
{
    out->n = ZSTD_compress(out->bytes, sizeof out->bytes, bytes, n_bytes, 1);
    assert_false(ZSTD_isError(out->n));
}

static inline void peer_make_frame(peer_frame *out, const dw_tensor *old,
                                   const dw_tensor *next, bool overwrite,
                                   const char *checksum)
{
    const uint8_t *a = old->data, *b = next->data;
    uint8_t plain[2048];
    size_t n = 0;
    if (!overwrite) {
        for (; n < next->n_bytes; n++)
            plain[n] = a[n] ^ b[n];
    } else {
        uint32_t count = 0;
        for (uint32_t i = 0; i < next->n_bytes; i++)
            if (a[i] != b[i])
                dw_store32(plain + 4 + 4 * count++, i);
        dw_store32(plain, count);
        n = 4 + 4 * count;
        for (uint32_t i = 0; i < next->n_bytes; i++)
            if (a[i] != b[i])
                plain[n++] = b[i];
    }
    peer_pack(out, plain, n);
    out->checksum[0] = '\0';
    if (checksum)
        dw_checksum_of(out->checksum, checksum, next->data, next->n_bytes);
}

/* ---- slime ---- */

static inline void peer_put_slime(dw_store *store, unsigned from, unsigned v,
                                  bool overwrite, const char *checksum)
{
    static peer_frame frames[PEER_TENSORS];
    char key[96], index[2048];
    const char *comma = "";
    size_t n =
        (size_t)snprintf(index, sizeof index,
                         "{\"metadata\":{\"version\":\"%06u\",\"base_version\":\"%06u\","
                         "\"delta_encoding\":\"%s\",\"compression_format\":\"zstd\","
                         "\"checksum_format\":\"%s\"},\"weight_map\":{",
                         v, from, overwrite ? "overwrite" : "xor", checksum);
    for (size_t t = 0; t < PEER_TENSORS; t++) { /* each in its own file */
        const dw_tensor *old = &peer_model[from][t], *next = &peer_model[v][t];
        if (memcmp(old->data, next->data, (size_t)next->n_bytes) == 0)
            continue;
        peer_make_frame(&frames[t], old, next, overwrite, checksum);
        const dw_tensor packed = {.name = next->name,
                                  .dtype = DW_U8,
                                  .n_dims = 1,
                                  .dims = &frames[t].n,
                                  .n_bytes = frames[t].n,
                                  .data = frames[t].bytes};
        const dw_pair metadata = {next->name, frames[t].checksum};
        snprintf(key, sizeof key, "weight_v%06u/model-%05zu-of-00003.safetensors", v, t);
        peer_put_file(store, key, &packed, 1, &metadata, 1);
        n += (size_t)snprintf(index + n, sizeof index - n, "%s\"%s\":\"%s\"", comma,
                              next->name, strchr(key, '/') + 1);
        comma = ",";
    }
    snprintf(index + n, sizeof index - n, "}}");
    snprintf(key, sizeof key, "weight_v%06u/model.safetensors.index.json", v);
    peer_put_text(store, key, index);
}

static inline void peer_put_slime_whole(dw_store *store, unsigned v)
{
    char key[96], index[512];
    snprintf(key, sizeof key, "weight_v%06u/model-00000-of-00002.safetensors", v);
    peer_put_file(store, key, peer_model[v], 1, NULL, 0);
    snprintf(key, sizeof key, "weight_v%06u/model-00001-of-00002.safetensors", v);
    peer_put_file(store, key, peer_model[v] + 1, 2, NULL, 0);
    snprintf(index, sizeof index,
             "{\"metadata\":{\"version\":\"%06u\"},\"weight_map\":{"
             "\"a.weight\":\"model-00000-of-00002.safetensors\","
             "\"b.norm\":\"model-00001-of-00002.safetensors\","
             "\"c.rare\":\"model-00001-of-00002.safetensors\"}}",
             v);
    snprintf(key, sizeof key, "weight_v%06u/model.safetensors.index.json", v);
    peer_put_text(store, key, index);
}

/* ---- whole buckets ---- */

typedef enum peer_bucket {
    BUCKET_TRL,   /* anchors 1 and 4; version 5 has no file */
    BUCKET_SLIME, /* xor and overwrite in turns; 4 is whole */
    BUCKET_SLIME_DELTAS,
    N_BUCKETS
} peer_bucket;

static inline dw_store *peer_make_bucket(peer_bucket kind)
{
    dw_store *store = kit_mem_store();
    for (unsigned v = 1; v <= PEER_VERSIONS; v++) {
        if (kind == BUCKET_TRL && v % 4 == 1 && v > 1)
            continue;
        if (kind == BUCKET_TRL && (v == 1 || v == 4))
            peer_put_anchor(store, v, PEER_TENSORS);
        else if (kind == BUCKET_TRL)
            peer_put_delta(store, v == 6 ? 4 : v - 1, v, "raw");
        else if (kind == BUCKET_SLIME && v == 4)
            peer_put_slime_whole(store, v);
        else
            peer_put_slime(store, v - 1, v, v % 2 == 0, v % 3 ? "xxh3-128" : "adler32");
    }
    return store;
}

static inline bool peer_has_version(peer_bucket kind, uint64_t v)
{
    return v >= 1 && v <= PEER_VERSIONS && (kind != BUCKET_TRL || v != 5);
}

/* ---- comparing ---- */

static inline void peer_check_tensors(const dw_tensor *tensors, size_t n,
                                      uint64_t version)
{
    assert_int_equal(n, PEER_TENSORS);
    for (size_t t = 0; t < n; t++) {
        const dw_tensor *wanted = &peer_model[version][t];
        assert_string_equal(tensors[t].name, wanted->name);
        assert_int_equal(tensors[t].n_bytes, wanted->n_bytes);
        assert_memory_equal(tensors[t].data, wanted->data, (size_t)wanted->n_bytes);
    }
}

/* The model is exactly the version that it says, or none. */
static inline void peer_check_model(const dw_foreign *f)
{
    size_t n;
    const dw_tensor *tensors = dw_foreign_tensors(f, &n);
    if (dw_foreign_at(f) != DW_NO_VERSION)
        peer_check_tensors(tensors, n, dw_foreign_at(f));
}

#endif
