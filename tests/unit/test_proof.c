/* A version is proven against the baseline before it may be committed. */
#include "unit/suite.h"

#include "publish/delta_upload.h"
#include "unit/stream_kit.h"

/* A model in pieces: the baseline, and the weights to publish. */
typedef struct version {
    model base, next;
    dw_pieces pieces;
    dw_tensor *base_views, *next_views;
    dw_digest *base_digests;
    dw_store *store;
    dw_delta_spec encode;
} version;

static void **data_of(const model *m)
{
    void **data = calloc(m->n, sizeof *data);
    for (size_t i = 0; i < m->n; i++)
        data[i] = m->tensors[i].data;
    return data;
}

static void version_make(version *v)
{
    *v = (version){.base = model_new(2), .store = kit_mem_store()};
    model_set(&v->base, 0, "a", DW_BF16, 1, (const uint64_t[]){70000}, 0);
    model_set(&v->base, 1, "b", DW_F32, 1, (const uint64_t[]){5000}, 0);
    model_fill(&v->base);
    v->next = model_copy(&v->base, false);
    model_change(&v->next, 20);
    dw_error err = {0};
    dw_slices owned;
    assert_ok(dw_slices_of_covers(&owned, NULL, 0, v->base.tensors, 2, &err), &err);
    assert_ok(dw_pieces_open(&v->pieces, v->base.tensors, 2, &owned, NULL, 1 << 16, &err),
              &err);
    v->base_views = calloc(v->pieces.cut.n, sizeof *v->base_views);
    v->next_views = calloc(v->pieces.cut.n, sizeof *v->next_views);
    v->base_digests = calloc(v->pieces.cut.n, sizeof *v->base_digests);
    void **base_data = data_of(&v->base), **next_data = data_of(&v->next);
    dw_pieces_view(&v->pieces, v->base_views, base_data);
    dw_pieces_view(&v->pieces, v->next_views, next_data);
    free(base_data);
    free(next_data);
    assert_ok(dw_digest_tensors(v->base_digests, NULL, v->base_views, v->pieces.cut.n, 1,
                                NULL, &err),
              &err);
    v->encode = (dw_delta_spec){
        .pieces = &v->pieces,
        .base = v->base_views,
        .next = v->next_views,
        .base_digests = v->base_digests,
        .from = 6,
        .to = 7,
        .store = v->store,
        .write_id = "0123456789abcdef0123456789abcdef",
        .max_object_bytes = 1 << 10,
        .n_threads = 1,
    };
}

static void version_free(version *v)
{
    dw_pieces_release(&v->pieces);
    free(v->base_views);
    free(v->next_views);
    free(v->base_digests);
    model_free(&v->base);
    model_free(&v->next);
    dw_store_close(v->store);
}

TEST(test_good_version)
{
    version v;
    version_make(&v);
    dw_uploaded uploaded;
    dw_error err = {0};
    assert_ok(dw_delta_upload(&uploaded, &v.encode, &err), &err);
    assert_true(uploaded.objects.n > 1);
    dw_uploaded_release(&uploaded);
    version_free(&v);
}

/* Other exponents: the delta's positions are counted among elements of one exponent. */
static void damage_base(void *context)
{
    version *v = context;
    uint8_t *bytes = v->base.tensors[0].data;
    for (size_t i = 1; i < 200; i += 2)
        bytes[i] ^= 0x04;
}

TEST(test_damaged_base)
{
    version v;
    version_make(&v);
    v.encode.captured = damage_base; /* after the encoding, before the proof */
    v.encode.captured_context = &v;
    dw_uploaded uploaded;
    dw_error err = {0};
    assert_fails(dw_delta_upload(&uploaded, &v.encode, &err), DW_CORRUPT, &err);
    assert_non_null(strstr(err.text, "version 7 was not committed"));
    dw_uploaded_release(&uploaded);
    damage_base(&v); /* undone */
    v.encode.captured = NULL;
    assert_ok(dw_delta_upload(&uploaded, &v.encode, &err), &err);
    dw_uploaded_release(&uploaded);
    version_free(&v);
}

/* The digest to be recorded differs from the one that the deltas lead to. */
static void damage_digest(void *context)
{
    dw_uploaded *uploaded = context;
    uploaded->digests[0] ^= 1;
}

TEST(test_wrong_digest)
{
    version v;
    version_make(&v);
    dw_uploaded uploaded;
    dw_error err = {0};
    v.encode.captured = damage_digest;
    v.encode.captured_context = &uploaded;
    assert_fails(dw_delta_upload(&uploaded, &v.encode, &err), DW_CORRUPT, &err);
    dw_uploaded_release(&uploaded);
    version_free(&v);
}

RUN_TESTS(NULL, NULL)
