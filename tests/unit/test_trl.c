#include "unit/suite.h"

#include "codec/delta.h"
#include "codec/seal.h"
#include "random_model.h"

/* ---- files as TRL writes them ---------------------------------------------------------
 */

enum { MAX_PARTS = 8 };

typedef struct trl_file {
    dw_pair metadata[8];
    size_t n_metadata;
    dw_tensor parts[MAX_PARTS];
    uint64_t dims[MAX_PARTS];
    size_t n_parts;
} trl_file;

static trl_file file_of(const char *encoding)
{
    trl_file f = {.metadata = {{"format", "sparse_weight_patch"},
                               {"sparse", "True"},
                               {"model_version", "3"}},
                  .n_metadata = 3};
    if (encoding)
        f.metadata[f.n_metadata++] = (dw_pair){"encoding", encoding};
    return f;
}

static void add_part(trl_file *f, const char *name, dw_dtype dtype, const void *data,
                     uint64_t n)
{
    size_t i = f->n_parts++;
    f->dims[i] = n;
    f->parts[i] = (dw_tensor){
        name, dtype, 1, NULL, n * dw_dtype_bits(dtype) / 8, (void *)data, 0, NULL};
}

static byte_buffer write_file(trl_file *f)
{
    dw_writer w = {0};
    byte_buffer b = {0};
    for (size_t i = 0; i < f->n_parts; i++)
        if (f->parts[i].n_dims == 1)
            f->parts[i].dims = &f->dims[i];
    assert_int_equal(dw_safetensors_header(&w, f->parts, f->n_parts, f->metadata,
                                           f->n_metadata, "f", NULL),
                     DW_OK);
    buffer_take(&b, w.bytes, w.n_bytes, NULL);
    for (size_t i = 0; i < f->n_parts; i++)
        buffer_take(&b, f->parts[i].data, (size_t)f->parts[i].n_bytes, NULL);
    dw_writer_release(&w);
    return b;
}

/* A model of one tensor 'w' of ten U16. */
static uint16_t weights[10];
static const uint64_t ten[] = {10};
static const dw_tensor target = {"w", DW_U16, 1, ten, 20, weights, 0, NULL};

static void reset_weights(void)
{
    for (uint16_t i = 0; i < 10; i++)
        weights[i] = i;
}

/* Opens and applies; returns the error of the one that fails. */
static dw_status use(trl_file *f, dw_error *err)
{
    byte_buffer b = write_file(f);
    dw_delta *delta;
    reset_weights();
    *err = (dw_error){0};
    dw_status status = dw_delta_open_bytes(&delta, b.bytes, b.n_bytes, "file", err);
    if (status == DW_OK)
        status = dw_delta_apply(delta, &target, 1, NULL, err);
    dw_delta_close(delta);
    free(b.bytes);
    return status;
}

static void check_result(const char *encoding, const char *index_name,
                         const char *values_name, dw_dtype index_dtype, const void *index)
{
    static const uint16_t values[] = {100, 101, 102};
    static const uint16_t expected[] = {100, 1, 2, 3, 101, 5, 6, 7, 8, 102};
    trl_file f = file_of(encoding);
    dw_error err;
    add_part(&f, index_name, index_dtype, index, 3);
    add_part(&f, values_name, DW_U16, values, 3);
    dw_status status = use(&f, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, DW_OK);
    assert_memory_equal(weights, expected, sizeof expected);
}

TEST(test_all_layouts)
{
    static const int32_t raw[] = {0, 4, 9};
    static const uint16_t gap16[] = {0, 3, 4};
    static const uint32_t gap32[] = {0, 3, 4};
    check_result(NULL, "w.indices", "w.values", DW_I32, raw);
    check_result("raw", "w.idx", "w.val", DW_I32, raw);
    check_result("gap_delta", "w.idx", "w.val", DW_U16, gap16);
    check_result("gap_delta", "w.idx", "w.val", DW_U32, gap32);
}

/* Information that TRL's own files lack is not invented. */
TEST(test_info)
{
    static const int32_t raw[] = {0, 4, 9};
    static const uint16_t values[] = {100, 101, 102};
    trl_file f = file_of(NULL);
    add_part(&f, "w.values", DW_U16, values, 3); /* in either order */
    add_part(&f, "w.indices", DW_I32, raw, 3);
    byte_buffer b = write_file(&f);
    dw_delta *delta, *class;
    assert_int_equal(dw_delta_open_bytes(&delta, b.bytes, b.n_bytes, "file", NULL),
                     DW_OK);
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    assert_int_equal(info.codec, DW_CODEC_RAW);
    assert_int_equal(info.trl_layout, 1);
    assert_false(info.has_digests);
    assert_int_equal(info.base_version, 2);
    assert_int_equal(info.new_version, 3);
    assert_int_equal(info.n_model_tensors, 0);
    assert_int_equal(info.n_changed, 3);
    dw_delta_tensor_info t;
    dw_delta_tensor(delta, 0, &t);
    assert_string_equal(t.name, "w");
    assert_false(t.has_shape);
    assert_int_equal(t.n_elems, 0);
    assert_int_equal(t.n_bytes, 18);

    /* after recoding with the weights it has everything */
    reset_weights();
    assert_int_equal(dw_delta_recode(&class, delta, &target, 1, NULL, NULL), DW_OK);
    dw_delta_get_info(class, &info);
    assert_true(info.has_digests);
    assert_int_equal(info.base_version, 2);
    assert_int_equal(info.new_version, 3);
    assert_int_equal(info.n_changed, 3);
    assert_int_equal(dw_delta_apply(class, &target, 1, NULL, NULL), DW_OK);
    assert_int_equal(weights[9], 102);
    dw_delta_close(class);
    dw_delta_close(delta);
    free(b.bytes);
}

/* An element that is 'changed' to its old value counts in the file, but not after
 * recoding. */
TEST(test_no_real_change)
{
    static const int32_t raw[] = {1, 2};
    static const uint16_t values[] = {1, 77};
    trl_file f = file_of("raw");
    add_part(&f, "w.idx", DW_I32, raw, 2);
    add_part(&f, "w.val", DW_U16, values, 2);
    byte_buffer b = write_file(&f);
    for (unsigned codec = 0; codec < 3; codec++) {
        dw_delta *delta, *recoded;
        dw_error err;
        assert_int_equal(dw_delta_open_bytes(&delta, b.bytes, b.n_bytes, "f", NULL),
                         DW_OK);
        reset_weights();
        dw_diff_options options = {
            .struct_bytes = sizeof options, .codec = (dw_codec)codec, .trl_layout = 3};
        assert_int_equal(dw_delta_recode(&recoded, delta, &target, 1, &options, &err),
                         DW_OK);
        assert_int_equal(dw_delta_apply(recoded, &target, 1, NULL, &err), DW_OK);
        assert_int_equal(weights[2], 77);
        assert_int_equal(weights[1], 1);
        dw_delta_close(recoded);
        dw_delta_close(delta);
    }
    free(b.bytes);
}

static void check_refused(trl_file *f, dw_status status, const char *text)
{
    dw_error err;
    dw_status got = use(f, &err);
    assert_string_equal(err.text, text);
    assert_int_equal(got, status);
    assert_string_equal(err.where, "file");
    for (uint16_t i = 0; i < 10; i++)
        assert_int_equal(weights[i], i);
}

TEST(test_bad_positions)
{
    static const uint16_t values[] = {1, 2, 3};
    static const struct {
        int32_t raw[3];
        unsigned index;
    } cases[] = {
        {{-1, 4, 5}, 0}, {{INT32_MIN, 4, 5}, 0}, {{0, -4, 5}, 1},        {{3, 2, 5}, 1},
        {{3, 3, 5}, 1},  {{0, 1, 10}, 2},        {{0, 1, INT32_MAX}, 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[128];
        snprintf(text, sizeof text,
                 "tensor 'w': index %u does not ascend or passes its 10 elements",
                 cases[c].index);
        trl_file f = file_of(NULL);
        add_part(&f, "w.indices", DW_I32, cases[c].raw, 3);
        add_part(&f, "w.values", DW_U16, values, 3);
        check_refused(&f, DW_CORRUPT, text);
    }
    static const uint16_t gap16[][3] = {{10, 0, 0}, {0, 9, 0}, {0, 0, 8}, {65535, 0, 0}};
    static const uint32_t gap32[][3] = {{UINT32_MAX, UINT32_MAX, 0}, {9, UINT32_MAX, 0}};
    for (size_t c = 0; c < 4; c++) {
        trl_file f = file_of("gap_delta");
        add_part(&f, "w.idx", DW_U16, gap16[c], 3);
        add_part(&f, "w.val", DW_U16, values, 3);
        char text[128];
        snprintf(text, sizeof text,
                 "tensor 'w': index %u does not ascend or passes its 10 elements",
                 c < 3 ? (unsigned)c : 0);
        check_refused(&f, DW_CORRUPT, text);
    }
    for (size_t c = 0; c < 2; c++) {
        trl_file f = file_of("gap_delta");
        add_part(&f, "w.idx", DW_U32, gap32[c], 3);
        add_part(&f, "w.val", DW_U16, values, 3);
        char text[128];
        snprintf(text, sizeof text,
                 "tensor 'w': index %zu does not ascend or passes its 10 elements", c);
        check_refused(&f, DW_CORRUPT, text);
    }
}

TEST(test_bad_pairs)
{
    static const int32_t raw[] = {0, 4, 9};
    static const uint16_t values[] = {1, 2, 3};
    static const struct {
        const char *encoding;
        const char *index_name, *values_name;
        dw_dtype index_dtype, values_dtype;
        uint64_t n_index, n_values;
        dw_status status;
        const char *text;
    } cases[] = {
        {NULL, "w.indices", "w.val", DW_I32, DW_U16, 3, 3, DW_CORRUPT,
         "tensor 'w': it has indices but no 'values'"},
        {"raw", "w.idx", "v.val", DW_I32, DW_U16, 3, 3, DW_CORRUPT,
         "tensor 'w': it has indices but no 'val'"},
        {"raw", "w.indices", "w.values", DW_I32, DW_U16, 3, 3, DW_CORRUPT,
         "2 tensors are not pairs of 'idx' and 'val'"},
        {"raw", ".idx", ".val", DW_I32, DW_U16, 3, 3, DW_CORRUPT,
         "2 tensors are not pairs of 'idx' and 'val'"},
        {"raw", "w.idx", "w.val", DW_U32, DW_U16, 3, 3, DW_CORRUPT,
         "tensor 'w': the indices have a type that its encoding does not use"},
        {"gap_delta", "w.idx", "w.val", DW_I32, DW_U16, 3, 3, DW_CORRUPT,
         "tensor 'w': the indices have a type that its encoding does not use"},
        {NULL, "w.indices", "w.values", DW_F32, DW_U16, 3, 3, DW_CORRUPT,
         "tensor 'w': the indices have a type that its encoding does not use"},
        {NULL, "w.indices", "w.values", DW_I32, DW_U16, 3, 2, DW_CORRUPT,
         "tensor 'w': the numbers of values and indices differ"},
        {NULL, "w.indices", "w.values", DW_I32, DW_F4, 2, 2, DW_CORRUPT,
         "tensor 'w': values of that type are smaller than a byte"},
        {NULL, "w.indices", "w.values", DW_I32, DW_I16, 3, 3, DW_MISMATCH,
         "tensor 'w': it is I16 here, but U16 in the weights"},
        {NULL, "x.indices", "x.values", DW_I32, DW_U16, 3, 3, DW_MISMATCH,
         "tensor 'x': the weights have no tensor of that name"},
        {"nvcomp_cascaded", "w.idx", "w.val", DW_I32, DW_U16, 3, 3, DW_UNSUPPORTED,
         "TRL encoding 'nvcomp_cascaded' is not supported; 'raw' and 'gap_delta' are"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        trl_file f = file_of(cases[c].encoding);
        add_part(&f, cases[c].index_name, cases[c].index_dtype, raw, cases[c].n_index);
        add_part(&f, cases[c].values_name, cases[c].values_dtype, values,
                 cases[c].n_values);
        check_refused(&f, cases[c].status, cases[c].text);
    }
    trl_file f = file_of(NULL);
    add_part(&f, "w.indices", DW_I32, raw, 1);
    add_part(&f, "w.values", DW_U16, values, 1);
    f.parts[1].n_dims = 0;
    check_refused(&f, DW_CORRUPT,
                  "tensor 'w': indices and values must have one dimension");
}

TEST(test_anchors_and_strangers)
{
    static const uint16_t values[] = {1, 2, 3};
    trl_file anchor = {
        .metadata = {{"format", "sparse_weight_patch"}, {"sparse", "False"}},
        .n_metadata = 2};
    add_part(&anchor, "w", DW_U16, values, 3);
    check_refused(&anchor, DW_UNSUPPORTED,
                  "a TRL anchor: whole weights, not a delta; open it as a checkpoint");
    trl_file stranger = {.metadata = {{"format", "pt"}}, .n_metadata = 1};
    add_part(&stranger, "w", DW_U16, values, 3);
    check_refused(&stranger, DW_UNSUPPORTED,
                  "a safetensors file, but not a delta: its metadata names neither "
                  "deltawire's nor TRL's format");
}

/* The metadata that deltawire adds is complete or refused. */
TEST(test_altered_extras)
{
    static const int32_t raw[] = {0};
    static const uint16_t values[] = {7};
    static const char good[] =
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[10],\"base\":\"0\",\"new\":\"1\"}}";
    static const char *const changed[] = {
        "{}",
        "{\"w\":1}",
        "{\"w\":{\"dtype\":\"I16\",\"shape\":[10],\"base\":\"0\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":10,\"base\":\"0\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[-1],\"base\":\"0\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[\"10\"],\"base\":\"0\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[10],\"base\":\"\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[10],\"base\":\"-1\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[10],\"base\":\"xyz\",\"new\":\"1\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[10],\"base\":\"0\"}}",
        "{\"w\":{\"dtype\":\"U16\",\"shape\":[4294967296,4294967296,2],\"base\":\"0\","
        "\"new\":\"1\"}}",
    };
    for (size_t c = 0; c <= sizeof changed / sizeof changed[0]; c++) {
        const bool whole = c == sizeof changed / sizeof changed[0];
        for (unsigned lacking = 0; lacking < (whole ? 5 : 1); lacking++) {
            static const dw_pair numbers[] = {{"base_digest", "0"},
                                              {"new_digest", "1"},
                                              {"elements", "10"},
                                              {"tensors", "1"}};
            trl_file f = file_of("raw");
            add_part(&f, "w.idx", DW_I32, raw, 1);
            add_part(&f, "w.val", DW_U16, values, 1);
            f.metadata[2] = (dw_pair){"base_version", "2"};
            f.n_metadata = 4;
            f.metadata[f.n_metadata++] = (dw_pair){"changed", whole ? good : changed[c]};
            /* file_of has room for eight, so one number is left out each time */
            trl_file g = f;
            dw_pair all[12];
            memcpy(all, g.metadata, g.n_metadata * sizeof *all);
            size_t n = g.n_metadata;
            for (unsigned i = 0; i < 4; i++)
                if (!whole || i + 1 != lacking)
                    all[n++] = numbers[i];
            all[n++] = (dw_pair){"seal", DW_SEAL_BLANK};
            dw_writer w = {0};
            byte_buffer b = {0};
            for (size_t i = 0; i < g.n_parts; i++)
                g.parts[i].dims = &g.dims[i];
            assert_int_equal(
                dw_safetensors_header(&w, g.parts, g.n_parts, all, n, "f", NULL), DW_OK);
            dw_seal_set(w.bytes + 8, w.n_bytes - 8, NULL, 0);
            buffer_take(&b, w.bytes, w.n_bytes, NULL);
            buffer_take(&b, raw, 4, NULL);
            buffer_take(&b, values, 2, NULL);
            dw_writer_release(&w);
            dw_delta *delta;
            dw_error err = {0};
            dw_status status =
                dw_delta_open_bytes(&delta, b.bytes, b.n_bytes, "file", &err);
            if (whole && lacking == 0) {
                assert_string_equal(err.text, "");
                assert_int_equal(status, DW_OK);
                reset_weights(); /* the digests are of other weights */
                assert_int_equal(dw_delta_apply(delta, &target, 1, NULL, &err), DW_STALE);
            } else {
                assert_int_equal(status, DW_CORRUPT);
                assert_string_equal(
                    err.text,
                    "the metadata that deltawire added is incomplete or altered");
            }
            dw_delta_close(delta);
            free(b.bytes);
        }
    }
}

/* If deltawire wrote the file, no bit of the header can be altered. */
TEST(test_sealed)
{
    uint16_t new_[10] = {9, 8};
    reset_weights();
    const dw_tensor next = {"w", DW_U16, 1, ten, 20, new_, 0, NULL};
    dw_diff_options o = {
        .struct_bytes = sizeof o, .codec = DW_CODEC_RAW, .trl_layout = 3};
    dw_delta *delta;
    byte_buffer b = {0};
    assert_int_equal(dw_delta_diff(&delta, &target, &next, 1, &o, NULL), DW_OK);
    dw_delta_write(delta, buffer_take, &b, NULL);
    dw_delta_close(delta);
    size_t n_header = 8 + (size_t)dw_load64(b.bytes);
    for (size_t bit = 64; bit < 8 * n_header; bit++) {
        b.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(dw_delta_open_bytes(&delta, b.bytes, b.n_bytes, "f", NULL),
                             DW_OK);
        b.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(b.bytes);
}

/* ---- writing
 * ------------------------------------------------------------------------ */

/* The file of TRL's own writer for this change, except for the values of its metadata. */
TEST(test_written_bytes)
{
    uint16_t new_[10];
    reset_weights();
    memcpy(new_, weights, sizeof new_);
    new_[2] = 0x1234;
    new_[9] = 0x5678;
    const dw_tensor next = {"w", DW_U16, 1, ten, 20, new_, 0, NULL};
    static const struct {
        dw_codec codec;
        unsigned layout;
        const char *index, *values;
        dw_dtype dtype;
        const char *bytes;
    } cases[] = {
        {DW_CODEC_RAW, 1, "w.indices", "w.values", DW_I32, "\x02\0\0\0\x09\0\0\0"},
        {DW_CODEC_RAW, 3, "w.idx", "w.val", DW_I32, "\x02\0\0\0\x09\0\0\0"},
        {DW_CODEC_GAP, 3, "w.idx", "w.val", DW_U16, "\x02\0\x06\0"},
    };
    for (size_t c = 0; c < 3; c++) {
        dw_diff_options o = {.struct_bytes = sizeof o,
                             .codec = cases[c].codec,
                             .trl_layout = cases[c].layout,
                             .new_version = 5,
                             .base_version = 4};
        dw_delta *delta;
        assert_int_equal(dw_delta_diff(&delta, &target, &next, 1, &o, NULL), DW_OK);
        byte_buffer b = {0};
        dw_delta_write(delta, buffer_take, &b, NULL);
        dw_safetensors f;
        assert_int_equal(dw_safetensors_parse(&f, b.bytes, b.n_bytes, "f", NULL), DW_OK);
        assert_int_equal(f.n_tensors, 2);
        const dw_tensor *index = strcmp(f.tensors[0].name, cases[c].index) == 0
                                     ? &f.tensors[0]
                                     : &f.tensors[1];
        const dw_tensor *values = &f.tensors[index == &f.tensors[0]];
        assert_string_equal(index->name, cases[c].index);
        assert_string_equal(values->name, cases[c].values);
        assert_int_equal(index->dtype, cases[c].dtype);
        assert_int_equal(index->n_bytes, cases[c].dtype == DW_U16 ? 4 : 8);
        assert_memory_equal(index->data, cases[c].bytes, (size_t)index->n_bytes);
        assert_memory_equal(values->data, "\x34\x12\x78\x56", 4);
        static const dw_pair wanted[] = {{"format", "sparse_weight_patch"},
                                         {"sparse", "True"},
                                         {"model_version", "5"},
                                         {"num_changed_params", "1"},
                                         {"total_changed_elements", "2"},
                                         {"total_elements", "10"},
                                         {"sparsity", "0.8"},
                                         {"base_version", "4"}};
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            assert_string_equal(dw_safetensors_metadata(&f, wanted[i].key),
                                wanted[i].value);
        const char *encoding = dw_safetensors_metadata(&f, "encoding");
        if (c == 0) {
            assert_null(encoding);
            assert_string_equal(dw_safetensors_metadata(&f, "changed_params"), "[\"w\"]");
        } else {
            assert_string_equal(encoding, c == 1 ? "raw" : "gap_delta");
        }
        dw_safetensors_release(&f);
        free(b.bytes);
        dw_delta_close(delta);
    }
}

/* Gaps beyond 16 bits take 32 for the whole tensor. */
TEST(test_gap_width)
{
    static uint8_t old[70000], new_[70000];
    static const uint64_t dims[] = {70000};
    const dw_tensor base = {"w", DW_U8, 1, dims, 70000, old, 0, NULL};
    const dw_tensor next = {"w", DW_U8, 1, dims, 70000, new_, 0, NULL};
    for (uint32_t gap = 65534; gap <= 65537; gap++) {
        memset(new_, 0, sizeof new_);
        new_[3] = 1;
        new_[3 + 1 + gap] = 1;
        dw_diff_options o = {
            .struct_bytes = sizeof o, .codec = DW_CODEC_GAP, .trl_layout = 3};
        dw_delta *delta;
        assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &o, NULL), DW_OK);
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, 0, &t);
        assert_int_equal(t.n_bytes, gap <= 65535 ? 2 * 3 : 2 * 5);
        memset(old, 0, sizeof old);
        assert_int_equal(dw_delta_apply(delta, &base, 1, NULL, NULL), DW_OK);
        assert_memory_equal(old, new_, sizeof old);
        memset(old, 0, sizeof old);
        dw_delta_close(delta);
    }
}

TEST(test_no_place)
{
    uint8_t old[8] = {0}, new_[8] = {1};
    static const uint64_t one[] = {1}, sixteen[] = {16};
    const struct {
        dw_tensor base;
        const char *text;
    } cases[] = {
        {{"w", DW_C64, 1, one, 8, old, 0, NULL},
         "tensor 'w': C64 has no place in TRL's layout: use codec class"},
        {{"w", DW_F4, 1, sixteen, 8, old, 0, NULL},
         "tensor 'w': F4 has no place in TRL's layout: use codec class"},
    };
    for (size_t c = 0; c < 2; c++) {
        dw_tensor next = cases[c].base;
        next.data = new_;
        dw_diff_options o = {
            .struct_bytes = sizeof o, .codec = DW_CODEC_RAW, .trl_layout = 3};
        dw_delta *delta;
        dw_error err;
        assert_int_equal(dw_delta_diff(&delta, &cases[c].base, &next, 1, &o, &err),
                         DW_UNSUPPORTED);
        assert_string_equal(err.text, cases[c].text);
    }
}

RUN_TESTS(NULL, NULL)
