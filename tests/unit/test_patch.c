/* labels: threads */
#include <xxhash.h>

#include "unit/suite.h"

#include "codec/patch.h"
#include "codec/stage.h"
#include "random_model.h"
#include "temp_dir.h"
#include "inner.h"

static model base, next;
static dw_delta *delta;
static const dw_patch_goal goal = {true, 0x123456789abcdefull, 300};
static dw_patch_goal found; /* from the last file */

static int set_up(void **state)
{
    base = model_random(false);
    next = model_copy(&base, true);
    model_change(&next, 40);
    return temp_dir_make(state) ||
           dw_delta_diff(&delta, base.tensors, next.tensors, base.n, NULL, NULL) != DW_OK;
}

static int tear_down(void **state)
{
    dw_delta_close(delta);
    model_free(&base);
    model_free(&next);
    return temp_dir_remove(state);
}

/* Stages into the patch file PATH. */
static void write_patch(const char *path, unsigned n_threads)
{
    dw_stage *stage;
    dw_stage_result result;
    dw_patch_writer *writer;
    dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = n_threads};
    assert_int_equal(dw_patch_writer_open(&writer, path, base.tensors, base.n, NULL),
                     DW_OK);
    assert_int_equal(dw_stage_open(&stage, delta, base.tensors, base.n, n_threads, NULL),
                     DW_OK);
    assert_int_equal(
        dw_stage_verify(&result, stage, &options, dw_patch_writer_take, writer, NULL),
        DW_OK);
    dw_stage_close(stage);
    assert_int_equal(dw_patch_writer_commit(writer, &goal, NULL), DW_OK);
}

TEST(test_file_round_trip)
{
    for (unsigned n_threads = 1; n_threads <= 4; n_threads += 3) {
        write_patch(temp_path("p"), n_threads);
        assert_int_equal(count_files(temp_dir), 1);
        dw_patch *from_file, *in_memory;
        dw_error err;
        assert_int_equal(dw_patch_open(&from_file, &found, temp_path("p"), &err), DW_OK);
        assert_int_equal(
            dw_delta_stage(&in_memory, delta, base.tensors, base.n, NULL, &err), DW_OK);
        assert_true(found.has_digest && found.state == goal.state &&
                    found.version == goal.version);
        assert_int_equal(dw_patch_changed(from_file), dw_patch_changed(in_memory));
        assert_int_equal(dw_patch_bytes(from_file), dw_patch_bytes(in_memory));
        assert_int_equal(from_file->n_segments, in_memory->n_segments);
        for (size_t i = 0; i < from_file->n_segments; i++) { /* in order, both */
            const dw_segment *a = &from_file->segments[i], *b = &in_memory->segments[i];
            assert_int_equal(a->tensor, b->tensor);
            assert_int_equal(a->first, b->first);
            assert_int_equal(a->n, b->n);
            assert_memory_equal(a->positions, b->positions, a->n * sizeof *a->positions);
        }
        /* in any order of tensors, and over half-applied stores */
        model m = model_copy(&base, true);
        for (size_t i = 0; i < m.n; i += 2)
            memcpy(m.tensors[i].data, model_find(&next, m.tensors[i].name)->data,
                   m.tensors[i].n_bytes);
        assert_int_equal(dw_patch_apply(from_file, m.tensors, m.n, n_threads, &err),
                         DW_OK);
        assert_true(model_equal(&m, &next));
        model_free(&m);
        dw_patch_free(from_file);
        dw_patch_free(in_memory);
    }
}

TEST(test_empty)
{
    dw_patch_writer *writer;
    dw_patch *patch;
    assert_int_equal(dw_patch_writer_open(&writer, temp_path("e"), NULL, 0, NULL), DW_OK);
    assert_int_equal(dw_patch_writer_commit(writer, &goal, NULL), DW_OK);
    assert_int_equal(dw_patch_open(&patch, &found, temp_path("e"), NULL), DW_OK);
    assert_int_equal(dw_patch_changed(patch), 0);
    assert_int_equal(dw_patch_apply(patch, NULL, 0, 1, NULL), DW_OK);
    assert_int_equal(dw_patch_apply(patch, base.tensors, base.n, 1, NULL), DW_OK);
    dw_patch_free(patch);
    unlink(temp_path("e"));
}

TEST(test_abort_leaves_nothing)
{
    dw_patch_writer *writer;
    size_t n_files = count_files(temp_dir);
    assert_int_equal(
        dw_patch_writer_open(&writer, temp_path("a"), base.tensors, base.n, NULL), DW_OK);
    assert_int_equal(count_files(temp_dir), n_files + 1);
    dw_patch_writer_abort(writer);
    assert_int_equal(count_files(temp_dir), n_files);
    dw_patch_writer_abort(NULL);
    dw_error err;
    assert_int_equal(dw_patch_writer_open(&writer, temp_path("no/dir"), NULL, 0, &err),
                     DW_NOT_FOUND);
}

/* ---- damage
 * ----------------------------------------------------------------------------- */

static dw_status open_bytes(const uint8_t *bytes, size_t n)
{
    dw_patch *patch = (dw_patch *)1;
    dw_error err = {0};
    put_file(temp_path("x"), bytes, n);
    dw_status status = dw_patch_open(&patch, &found, temp_path("x"), &err);
    if (status == DW_OK) { /* then its stores are safe */
        model m = model_copy(&base, false);
        status = dw_patch_apply(patch, m.tensors, m.n, 1, &err);
        model_free(&m);
        dw_patch_free(patch);
    } else {
        assert_null(patch);
        assert_int_equal(err.code, status);
        assert_string_equal(err.where, temp_path("x"));
    }
    return status;
}

/* Every byte is protected: no alteration is accepted. */
TEST(test_altered_files)
{
    size_t n;
    write_patch(temp_path("p"), 1);
    uint8_t *bytes = get_file(temp_path("p"), &n);
    assert_int_equal(open_bytes(bytes, n), DW_OK);
    for (size_t cut = 0; cut < n; cut += 1 + random_below(n / 20))
        assert_int_equal(open_bytes(bytes, cut), DW_CORRUPT);
    for (unsigned round = 0; round < 200; round++) {
        size_t at = round < 24   ? round
                    : round < 60 ? n - 1 - (round - 24)
                                 : random_below(n);
        uint8_t kept = bytes[at];
        bytes[at] ^= (uint8_t)(1u << random_below(8));
        assert_int_equal(open_bytes(bytes, n), DW_CORRUPT);
        bytes[at] = kept;
    }
    free(bytes);
}

/* With valid hashes: refused, or harmless. */
TEST(test_resealed_files)
{
    size_t n;
    write_patch(temp_path("p"), 1);
    uint8_t *bytes = get_file(temp_path("p"), &n), *kept = malloc(n);
    memcpy(kept, bytes, n);
    const size_t table = (size_t)dw_load64(bytes + n - 16);
    for (unsigned round = 0; round < 400; round++) {
        for (unsigned i = 0; i <= round % 3; i++)
            bytes[table + random_below(n - 16 - table)] = (uint8_t)random64();
        dw_store64(bytes + n - 8, XXH64(bytes + table, n - 16 - table, 0));
        open_bytes(bytes, n);
        memcpy(bytes, kept, n);
    }
    free(bytes);
    free(kept);
}

/* A crafted patch of one segment. */
static size_t craft(uint8_t *out, const uint32_t positions[2], uint64_t tensor,
                    uint64_t first, uint64_t n_stores, uint64_t offset, uint64_t dim)
{
    memcpy(out, "DWPATCH1", 8);
    memcpy(out + 8, positions, 8);
    memset(out + 16, 0, 16);
    memset(out + 16, 0x77, 2); /* new */
    memset(out + 24, 0x66, 2); /* old */
    uint8_t *at = out + 32;
    memcpy(at, "\0\0\0\0\0\0\0\0\0\x05", 10); /* no digest, version 5 */
    at += 10;
    *at++ = 1; /* one tensor, "w", U8 [dim] */
    memcpy(at, "\x01w\x01\x01", 4);
    at = dw_put_varint(at + 4, dim);
    *at++ = 1; /* one segment */
    at = dw_put_varint(at, tensor);
    at = dw_put_varint(at, first);
    at = dw_put_varint(at, n_stores);
    at = dw_put_varint(at, offset);
    dw_store64(at, XXH64(out + 8, 24, 0));
    at += 8;
    dw_store64(at, 32);
    dw_store64(at + 8, XXH64(out + 32, (size_t)(at - out) - 32, 0));
    return (size_t)(at + 16 - out);
}

TEST(test_crafted_files)
{
    static const struct {
        uint32_t positions[2];
        uint64_t tensor, first, n_stores, offset, dim;
        dw_status status;
    } cases[] = {
        {{3, 9}, 0, 0, 2, 8, 10, DW_OK},
        {{3, 4}, 0, 5, 2, 8, 10, DW_OK},
        {{3, 10}, 0, 0, 2, 8, 10, DW_CORRUPT}, /* past the end */
        {{3, 5}, 0, 5, 2, 8, 10, DW_CORRUPT},  /* from its base */
        {{3, 3}, 0, 0, 2, 8, 10, DW_CORRUPT},  /* twice */
        {{4, 3}, 0, 0, 2, 8, 10, DW_CORRUPT},  /* descending */
        {{3, UINT32_MAX}, 0, 0, 2, 8, 10, DW_CORRUPT},
        {{3, 9}, 1, 0, 2, 8, 10, DW_CORRUPT}, /* no such tensor */
        {{3, 9}, UINT64_MAX, 0, 2, 8, 10, DW_CORRUPT},
        {{3, 9}, 0, UINT64_MAX, 2, 8, 10, DW_CORRUPT},
        {{3, 9}, 0, UINT64_MAX - 3, 2, 8, 10, DW_CORRUPT}, /* wraps round */
        {{3, 9}, 0, 11, 2, 8, 10, DW_CORRUPT},
        {{3, 9}, 0, 0, 0, 8, 10, DW_CORRUPT}, /* no stores */
        {{3, 9}, 0, 0, 3, 8, 10, DW_CORRUPT}, /* more than there are */
        {{3, 9}, 0, 0, UINT32_MAX, 8, 10, DW_CORRUPT},
        {{3, 9}, 0, 0, UINT64_MAX, 8, 10, DW_CORRUPT},
        {{3, 9}, 0, 0, 2, 12, 10, DW_CORRUPT}, /* not at a multiple of 8 */
        {{3, 9}, 0, 0, 2, 16, 10, DW_CORRUPT}, /* into the table */
        {{3, 9}, 0, 0, 2, 32, 10, DW_CORRUPT},
        {{3, 9}, 0, 0, 2, UINT64_MAX - 7, 10, DW_CORRUPT},
        {{3, 9}, 0, 0, 2, 8, 0, DW_CORRUPT}, /* an empty tensor */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint8_t bytes[256];
        size_t n = craft(bytes, cases[c].positions, cases[c].tensor, cases[c].first,
                         cases[c].n_stores, cases[c].offset, cases[c].dim);
        put_file(temp_path("c"), bytes, n);
        dw_patch *patch;
        dw_error err;
        assert_int_equal(dw_patch_open(&patch, &found, temp_path("c"), &err),
                         cases[c].status);
        if (!patch)
            continue;
        uint8_t weights[10];
        static const uint64_t dims[] = {10};
        const dw_tensor t = {"w", DW_U8, 1, dims, 10, weights, 0, NULL};
        assert_false(found.has_digest);
        assert_int_equal(found.version, 5);
        memset(weights, 0x66, sizeof weights);
        assert_int_equal(dw_patch_check(patch, &t, 1, 0, "c", &err), DW_OK);
        assert_int_equal(dw_patch_apply(patch, &t, 1, 1, &err), DW_OK);
        assert_int_equal(dw_patch_check(patch, &t, 1, 0, "c", &err), DW_OK);
        assert_int_equal(weights[cases[c].first + cases[c].positions[0]], 0x77);
        assert_int_equal(weights[9], 0x77);
        dw_patch_free(patch);
    }
}

/* With none, some or all of the stores it is the same checkpoint. If one byte is neither
 * old nor new, it is not. */
TEST(test_check)
{
    dw_patch *patch;
    dw_error err;
    write_patch(temp_path("p"), 1);
    assert_int_equal(dw_patch_open(&patch, &found, temp_path("p"), &err), DW_OK);
    model m = model_copy(&base, true);
    assert_int_equal(dw_patch_check(patch, m.tensors, m.n, 0, "p", &err), DW_OK);
    for (size_t i = 0; i < patch->n_segments; i++) {
        const dw_segment *s = &patch->segments[i];
        const dw_tensor *t = model_find(&m, patch->tensors[s->tensor].name);
        const unsigned width = dw_dtype_element(t->dtype).width;
        for (uint32_t k = 0; k < s->n; k += 1 + (uint32_t)(i % 2))
            dw_element_store(t->data, s->first + s->positions[k], width,
                             dw_element_load(s->values, k, width));
        assert_int_equal(dw_patch_check(patch, m.tensors, m.n, 0, "p", &err), DW_OK);
        if (width == 1)
            continue;
        uint64_t at = s->first + s->positions[s->n - 1];
        uint64_t kept = dw_element_load(t->data, at, width), other = kept;
        const uint8_t a = (uint8_t)dw_element_load(s->values, s->n - 1, width);
        const uint8_t b = (uint8_t)dw_element_load(s->old_values, s->n - 1, width);
        while ((uint8_t)other == a || (uint8_t)other == b)
            other ^= 1 + random_below(255);
        dw_element_store(t->data, at, width, other);
        assert_int_equal(dw_patch_check(patch, m.tensors, m.n, 0, "p", &err), DW_STALE);
        assert_non_null(strstr(err.text, t->name));
        dw_element_store(t->data, at, width, kept);
    }
    model_free(&m);
    dw_patch_free(patch);
}

/* ---- other weights
 * ------------------------------------------------------------------------ */

/* A file that changes after it was opened: only proven values are ever stored. */
TEST(test_altered_while_open)
{
    write_patch(temp_path("p"), 1);
    size_t n;
    uint8_t *bytes = get_file(temp_path("p"), &n);
    dw_error err;
    for (unsigned round = 0; round < 200; round++) {
        dw_patch *patch;
        assert_int_equal(dw_patch_open(&patch, &found, temp_path("p"), &err), DW_OK);
        const dw_segment *s = &patch->segments[random_below(patch->n_segments)];
        const size_t at = (size_t)((const uint8_t *)s->positions - patch->map.bytes) +
                          (size_t)random_below(s->n_bytes);
        FILE *file = fopen(temp_path("p"), "r+b");
        assert_non_null(file);
        fseek(file, (long)at, SEEK_SET);
        fputc(bytes[at] ^ (1 << random_below(8)), file);
        fclose(file);
        model m = model_copy(&base, true);
        assert_int_equal(dw_patch_apply(patch, m.tensors, m.n, 1, &err), DW_CORRUPT);
        assert_non_null(strstr(err.text, "were altered"));
        model_free(&m);
        dw_patch_free(patch);
        put_file(temp_path("p"), bytes, n);
    }
    free(bytes);
}

TEST(test_mismatch)
{
    dw_patch *patch;
    dw_error err;
    assert_int_equal(dw_delta_stage(&patch, delta, base.tensors, base.n, NULL, &err),
                     DW_OK);
    const size_t changed = patch->segments[0].tensor;
    model m = model_copy(&base, false);
    dw_tensor kept = m.tensors[changed];
    m.tensors[changed].name = "other";
    assert_int_equal(dw_patch_apply(patch, m.tensors, m.n, 1, &err), DW_MISMATCH);
    assert_non_null(strstr(err.text, kept.name));
    assert_non_null(strstr(err.text, "the weights have no tensor of that name"));
    m.tensors[changed] = kept;
    uint64_t dims[DW_MAX_DIMS] = {0}; /* another shape of the same size */
    for (uint32_t d = 0; d < kept.n_dims; d++)
        dims[d] = kept.dims[d];
    dims[m.tensors[changed].n_dims++] = 1;
    m.tensors[changed].dims = dims;
    assert_int_equal(dw_patch_apply(patch, m.tensors, m.n, 1, &err), DW_MISMATCH);
    m.tensors[changed] = kept;
    for (unsigned t = 0; t < DW_DTYPE_COUNT; t++) /* another type of the same size */
        if (t != kept.dtype && dw_dtype_bits((dw_dtype)t) == dw_dtype_bits(kept.dtype))
            m.tensors[changed].dtype = (dw_dtype)t;
    assert_int_not_equal(m.tensors[changed].dtype, kept.dtype);
    assert_int_equal(dw_patch_apply(patch, m.tensors, m.n, 1, &err), DW_MISMATCH);
    m.tensors[changed] = kept;
    assert_true(model_equal(&m, &base));
    dw_patch_free(patch);
    model_free(&m);
}

RUN_TESTS(set_up, tear_down)
