#include <time.h>

#include "unit/suite.h"

#include "base/mem.h"
#include "failing_allocator.h"
#include "tensor/safetensors.h"

/* ---- golden files ----------------------------------------------------------- */

static const char *golden_path(const char *name)
{
    static char path[1024];
    const char *dir = getenv("DW_TEST_DIR");
    snprintf(path, sizeof path, "%s/golden/safetensors/%s", dir ? dir : DW_TEST_DIR,
             name);
    return path;
}

/* Reads into a block of the exact size, so that ASan notices a read past the end. */
static uint8_t *read_golden(const char *name, size_t *n_bytes)
{
    FILE *f = fopen(golden_path(name), "rb");
    assert_non_null(f);
    uint8_t buffer[1024];
    *n_bytes = fread(buffer, 1, sizeof buffer, f);
    fclose(f);
    uint8_t *bytes = malloc(*n_bytes);
    memcpy(bytes, buffer, *n_bytes);
    return bytes;
}

TEST(test_golden_files)
{
    FILE *f = fopen(golden_path("expected.txt"), "r");
    assert_non_null(f);
    char line[1024];
    size_t n_files = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *status_name = strchr(line, '\t');
        assert_non_null(status_name);
        *status_name++ = '\0';
        char *text = strchr(status_name, '\t');
        assert_non_null(text);
        *text++ = '\0';

        size_t n_bytes;
        uint8_t *bytes = read_golden(line, &n_bytes);
        dw_safetensors file;
        dw_error err = {0};
        dw_status status = dw_safetensors_parse(&file, bytes, n_bytes, line, &err);
        if (strcmp(text, err.text) != 0)
            print_error("%s\n", line);
        assert_string_equal(err.text, text);
        assert_string_equal(dw_status_name(status), status_name);
        if (status != DW_OK) {
            assert_int_equal(err.code, status);
            assert_string_equal(err.where, line);
            assert_null(file.arena);
        }
        dw_safetensors_release(&file);
        free(bytes);
        n_files++;
    }
    fclose(f);
    assert_true(n_files > 50);
}

TEST(test_scalar_and_empty)
{
    size_t n_bytes;
    dw_safetensors file;
    dw_error err;
    uint8_t *bytes = read_golden("good_scalar.safetensors", &n_bytes);
    assert_int_equal(dw_safetensors_parse(&file, bytes, n_bytes, "f", &err), DW_OK);
    assert_int_equal(file.n_tensors, 1);
    assert_int_equal(file.tensors[0].n_dims, 0);
    assert_int_equal(file.tensors[0].n_bytes, 4);
    assert_memory_equal(file.tensors[0].data, "\0\1\2\3", 4);
    assert_int_equal(file.data_start + 4, n_bytes);
    dw_safetensors_release(&file);
    free(bytes);

    bytes = read_golden("good_zero_sized_between.safetensors", &n_bytes);
    assert_int_equal(dw_safetensors_parse(&file, bytes, n_bytes, "f", &err), DW_OK);
    assert_int_equal(file.n_tensors, 3);
    assert_string_equal(file.tensors[1].name, "b");
    assert_int_equal(file.tensors[1].n_bytes, 0);
    assert_string_equal(file.tensors[2].name, "c");
    dw_safetensors_release(&file);
    free(bytes);
}

TEST(test_metadata_lookup)
{
    size_t n_bytes;
    dw_safetensors file;
    uint8_t *bytes = read_golden("good_metadata_only.safetensors", &n_bytes);
    assert_int_equal(dw_safetensors_parse(&file, bytes, n_bytes, "f", NULL), DW_OK);
    assert_int_equal(file.n_metadata, 2);
    assert_string_equal(file.metadata[0].key, "format");
    assert_string_equal(dw_safetensors_metadata(&file, "format"), "pt");
    assert_string_equal(dw_safetensors_metadata(&file, "b"), "");
    assert_null(dw_safetensors_metadata(&file, "c"));
    dw_safetensors_release(&file);
    free(bytes);
}

/* ---- a file in memory ------------------------------------------------------- */

static const uint64_t dims_2x3[] = {2, 3};
static const uint64_t dims_5[] = {5};
static const dw_tensor sample[] = {
    {.name = "b", .dtype = DW_F32, .n_dims = 2, .dims = dims_2x3, .n_bytes = 24},
    {.name = "a\"\\\n\x01/\x7f\xc3\xa9",
     .dtype = DW_BF16,
     .n_dims = 1,
     .dims = dims_5,
     .n_bytes = 10},
    {.name = "s", .dtype = DW_U8, .n_dims = 0, .n_bytes = 1},
};
static const dw_pair sample_metadata[] = {{"format", "pt"}, {"k\t", "v\x1f"}};

#define N_SAMPLE 3
#define N_DATA   35

static uint8_t *make_sample(size_t *n_bytes)
{
    dw_writer w = {0};
    assert_int_equal(
        dw_safetensors_header(&w, sample, N_SAMPLE, sample_metadata, 2, "f", NULL),
        DW_OK);
    for (uint8_t i = 0; i < N_DATA; i++)
        dw_write_u8(&w, i);
    *n_bytes = w.n_bytes;
    return w.bytes;
}

TEST(test_round_trip)
{
    size_t n_bytes;
    uint8_t *bytes = make_sample(&n_bytes);
    dw_safetensors file;
    dw_error err;
    assert_int_equal(dw_safetensors_parse(&file, bytes, n_bytes, "f", &err), DW_OK);
    assert_int_equal(file.data_start % 8, 0);
    assert_int_equal(file.n_tensors, N_SAMPLE);
    assert_int_equal(file.n_metadata, 2);
    assert_string_equal(dw_safetensors_metadata(&file, "k\t"), "v\x1f");
    for (size_t i = 0; i < N_SAMPLE; i++) {
        const dw_tensor *t = &file.tensors[i];
        assert_string_equal(t->name, sample[i].name);
        assert_int_equal(t->dtype, sample[i].dtype);
        assert_int_equal(t->n_bytes, sample[i].n_bytes);
        assert_int_equal(t->n_dims, sample[i].n_dims);
        if (t->n_dims > 0)
            assert_memory_equal(t->dims, sample[i].dims, t->n_dims * sizeof *t->dims);
    }
    assert_int_equal(*(uint8_t *)file.tensors[1].data, 24);
    dw_safetensors_release(&file);
    dw_free(bytes);
}

TEST(test_header_text)
{
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"k\\t\":\"v\\u001f\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"a\\\"\\\\\\n\\u0001/\x7f\xc3\xa9\":"
        "{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[24,34]},"
        "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[34,35]}}";
    size_t n_bytes;
    uint8_t *bytes = make_sample(&n_bytes);
    size_t n_header = n_bytes - N_DATA - 8;
    assert_int_equal(dw_load64(bytes), n_header);
    assert_memory_equal(bytes + 8, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < n_header; i++)
        assert_int_equal(bytes[8 + i], ' ');
    dw_free(bytes);
}

TEST(test_every_truncation)
{
    size_t n_bytes;
    uint8_t *bytes = make_sample(&n_bytes);
    for (size_t n = 0; n < n_bytes; n++) {
        uint8_t *part = malloc(n); /* a separate block, so that ASan guards its end */
        memcpy(part, bytes, n);
        dw_safetensors file;
        dw_error err = {0};
        assert_int_equal(dw_safetensors_parse(&file, part, n, "f", &err), DW_CORRUPT);
        assert_true(err.text[0] != '\0');
        free(part);
    }
    dw_free(bytes);
}

static void touch_tensors(const dw_safetensors *file, const uint8_t *end)
{
    for (size_t i = 0; i < file->n_tensors; i++) {
        const dw_tensor *t = &file->tensors[i];
        assert_true((const uint8_t *)t->data + t->n_bytes <= end);
        if (i > 0)
            assert_true((const uint8_t *)t[-1].data + t[-1].n_bytes == t->data);
    }
}

TEST(test_every_bit_flip)
{
    size_t n_bytes;
    uint8_t *bytes = make_sample(&n_bytes);
    for (size_t bit = 0; bit < (n_bytes - N_DATA) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        dw_safetensors file;
        if (dw_safetensors_parse(&file, bytes, n_bytes, "f", NULL) == DW_OK) {
            touch_tensors(&file, bytes + n_bytes);
            dw_safetensors_release(&file);
        }
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    dw_free(bytes);
}

static uint8_t *sample_bytes;
static size_t n_sample_bytes;

static dw_status parse_sample(dw_error *err)
{
    dw_safetensors file;
    dw_status status =
        dw_safetensors_parse(&file, sample_bytes, n_sample_bytes, "f", err);
    dw_safetensors_release(&file);
    return status;
}

static dw_status write_sample(dw_error *err)
{
    dw_writer w = {0};
    dw_status status = dw_safetensors_header(&w, sample, N_SAMPLE, NULL, 0, "f", err);
    dw_writer_release(&w);
    return status;
}

TEST(test_allocation_failures)
{
    sample_bytes = make_sample(&n_sample_bytes);
    fail_every_allocation(parse_sample, NULL);
    fail_every_allocation(write_sample, NULL);
    dw_free(sample_bytes);
}

/* ---- sizes ------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(test_many_tensors)
{
    enum { n = 100000 };
    dw_tensor *tensors = calloc(n, sizeof *tensors);
    char(*names)[48] = calloc(n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%zu.mlp.experts.down_proj", i);
        tensors[i] = (dw_tensor){.name = names[i],
                                 .dtype = DW_F32,
                                 .n_dims = 2,
                                 .dims = dims_2x3,
                                 .n_bytes = 24};
    }
    double start = seconds();
    dw_writer w = {0};
    assert_int_equal(dw_safetensors_header(&w, tensors, n, NULL, 0, "f", NULL), DW_OK);
    double written = seconds();
    uint8_t *bytes = calloc(w.n_bytes + n * 24, 1);
    memcpy(bytes, w.bytes, w.n_bytes);
    dw_safetensors file;
    double begin = seconds();
    assert_int_equal(dw_safetensors_parse(&file, bytes, w.n_bytes + n * 24, "f", NULL),
                     DW_OK);
    print_message("100,000 tensors: written in %.3f s, parsed in %.3f s\n",
                  written - start, seconds() - begin);
    assert_int_equal(file.n_tensors, n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(file.tensors[i].name, names[i]);
    dw_safetensors_release(&file);
    dw_writer_release(&w);
    free(bytes);
    free(names);
    free(tensors);
}

TEST(test_header_over_limit)
{
    size_t n_name = DW_SAFETENSORS_MAX_HEADER;
    char *name = malloc(n_name + 1);
    memset(name, 'n', n_name);
    name[n_name] = '\0';
    dw_tensor tensor = {.name = name, .dtype = DW_U8, .n_bytes = 1};
    dw_writer w = {0};
    dw_error err;
    assert_int_equal(dw_safetensors_header(&w, &tensor, 1, NULL, 0, "f", &err),
                     DW_UNSUPPORTED);
    assert_string_equal(err.text,
                        "a header of 100000056 bytes is over the limit of 100000000");
    dw_writer_release(&w);
    free(name);
}

static void assert_header_refused(dw_tensor tensor, const char *text)
{
    dw_writer w = {0};
    dw_error err;
    assert_int_equal(dw_safetensors_header(&w, &tensor, 1, NULL, 0, "f", &err),
                     DW_INVALID);
    assert_string_equal(err.text, text);
    dw_writer_release(&w);
}

TEST(test_unwritable_tensors)
{
    static const uint64_t dims_huge[] = {UINT64_MAX, 2};
    static const uint64_t dims_3[] = {3};
    assert_header_refused(
        (dw_tensor){.name = "__metadata__", .dtype = DW_U8, .n_bytes = 1},
        "tensor '__metadata__': the name is reserved");
    assert_header_refused((dw_tensor){.name = "\xc3(", .dtype = DW_U8, .n_bytes = 1},
                          "tensor '\xc3(': the name is not UTF-8");
    assert_header_refused((dw_tensor){.name = "a", .dtype = (dw_dtype)99, .n_bytes = 1},
                          "tensor 'a': its dtype and shape have no size in bytes");
    assert_header_refused(
        (dw_tensor){.name = "a", .dtype = DW_U8, .n_dims = 2, .dims = dims_huge},
        "tensor 'a': its dtype and shape have no size in bytes");
    assert_header_refused(
        (dw_tensor){.name = "a", .dtype = DW_F4, .n_dims = 1, .dims = dims_3},
        "tensor 'a': its dtype and shape have no size in bytes");
    assert_header_refused((dw_tensor){.name = "a", .dtype = DW_U16, .n_bytes = 1},
                          "tensor 'a': shape needs 2 bytes but n_bytes is 1");

    dw_pair bad = {"k", "\xff"};
    dw_writer w = {0};
    assert_int_equal(dw_safetensors_header(&w, NULL, 0, &bad, 1, "f", NULL), DW_INVALID);
    dw_writer_release(&w);
}

RUN_TESTS(NULL, NULL)
