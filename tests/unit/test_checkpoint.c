#include <signal.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "base/bytes.h"
#include "deltawire/checkpoint.h"
#include "failing_allocator.h"
#include "temp_dir.h"
#include "tensor/safetensors.h"

/* ---- tensors to write ------------------------------------------------------- */

static const uint64_t dims_2x3[] = {2, 3};
static const uint64_t dims_4[] = {4};
static const uint64_t dims_0x7[] = {0, 7};

static float floats[6] = {0, 1, 2, 3, 4, 5};
static uint16_t halves[6] = {10, 11, 12, 13, 14, 15};
static uint8_t bytes_4[4] = {20, 21, 22, 23};
static uint64_t scalar = 30;

static const dw_tensor tensors[] = {
    {"w.bytes", DW_U8, 1, dims_4, sizeof bytes_4, bytes_4, 0, NULL},
    {"w.floats", DW_F32, 2, dims_2x3, sizeof floats, floats, 0, NULL},
    {"a.halves", DW_BF16, 2, dims_2x3, sizeof halves, halves, 0, NULL},
    {"z.scalar", DW_U64, 0, NULL, sizeof scalar, &scalar, 0, NULL},
    {"empty", DW_F64, 2, dims_0x7, 0, NULL, 0, NULL},
};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };
static const char *const sorted_names[] = {"a.halves", "empty", "w.bytes", "w.floats",
                                           "z.scalar"};

static const dw_checkpoint_write_options sharded = {.struct_bytes = sizeof sharded,
                                                    .max_shard_bytes = 30};

static dw_checkpoint *open_or_fail(const char *path, unsigned flags)
{
    dw_checkpoint *ckpt;
    dw_error err = {0};
    if (dw_checkpoint_open(&ckpt, path, flags, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    return ckpt;
}

static void assert_open_refused(const char *path, dw_status status, const char *where,
                                const char *text)
{
    dw_checkpoint *ckpt = (dw_checkpoint *)1;
    dw_error err = {0};
    assert_int_equal(dw_checkpoint_open(&ckpt, path, 0, &err), status);
    assert_null(ckpt);
    assert_string_equal(err.where, where);
    assert_string_equal(err.text, text);
}

static void assert_holds_tensors(const char *path)
{
    dw_checkpoint *ckpt = open_or_fail(path, DW_CHECKPOINT_READ);
    size_t n;
    const dw_tensor *list = dw_checkpoint_tensors(ckpt, &n);
    assert_int_equal(n, N_TENSORS);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(list[i].name, sorted_names[i]);
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = dw_checkpoint_find(ckpt, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_int_equal(t->n_bytes, tensors[i].n_bytes);
        if (t->n_bytes > 0)
            assert_memory_equal(t->data, tensors[i].data, t->n_bytes);
    }
    assert_null(dw_checkpoint_find(ckpt, "w.byte"));
    dw_checkpoint_close(ckpt);
}

/* ---- one file --------------------------------------------------------------- */

TEST(test_single_file)
{
    const dw_pair pair = {"format", "pt"};
    const dw_checkpoint_write_options options = {
        .struct_bytes = sizeof options, .metadata = &pair, .n_metadata = 1};
    assert_int_equal(mkdir(temp_path("one"), 0777), 0);
    const char *path = temp_path("one/weights.safetensors");
    assert_int_equal(dw_checkpoint_write(path, tensors, N_TENSORS, &options, NULL),
                     DW_OK);
    assert_int_equal(count_files(temp_path("one")), 1);
    assert_holds_tensors(path);
    assert_holds_tensors(temp_path("one")); /* the only file of a directory */

    dw_checkpoint *ckpt = open_or_fail(path, DW_CHECKPOINT_READ);
    assert_int_equal(dw_checkpoint_file_count(ckpt), 1);
    assert_string_equal(dw_checkpoint_file(ckpt, 0), path);
    assert_null(dw_checkpoint_file(ckpt, 1));
    assert_string_equal(dw_checkpoint_metadata(ckpt, "format"), "pt");
    assert_null(dw_checkpoint_metadata(ckpt, "other"));
    dw_checkpoint_close(ckpt);
}

TEST(test_stock_order)
{
    const char *path = temp_path("order.safetensors");
    assert_int_equal(dw_checkpoint_write(path, tensors, N_TENSORS, NULL, NULL), DW_OK);
    size_t n_bytes;
    uint8_t *bytes = get_file(path, &n_bytes);
    dw_safetensors file;
    assert_int_equal(dw_safetensors_parse(&file, bytes, n_bytes, path, NULL), DW_OK);
    static const char *const order[] = {"z.scalar", "empty", "w.floats", "a.halves",
                                        "w.bytes"};
    for (size_t i = 0; i < N_TENSORS; i++)
        assert_string_equal(file.tensors[i].name, order[i]);
    dw_safetensors_release(&file);
    free(bytes);
}

TEST(test_no_tensors)
{
    const char *path = temp_path("nothing.safetensors");
    assert_int_equal(dw_checkpoint_write(path, NULL, 0, NULL, NULL), DW_OK);
    dw_checkpoint *ckpt = open_or_fail(path, DW_CHECKPOINT_READ);
    size_t n;
    dw_checkpoint_tensors(ckpt, &n);
    assert_int_equal(n, 0);
    assert_null(dw_checkpoint_find(ckpt, ""));
    dw_checkpoint_close(ckpt);
}

TEST(test_stores_reach_the_file)
{
    const char *path = temp_path("writable.safetensors");
    assert_int_equal(dw_checkpoint_write(path, tensors, N_TENSORS, NULL, NULL), DW_OK);
    dw_checkpoint *ckpt = open_or_fail(path, DW_CHECKPOINT_WRITE);
    ((uint8_t *)dw_checkpoint_find(ckpt, "w.bytes")->data)[2] = 99;
    assert_int_equal(dw_checkpoint_sync(ckpt, NULL), DW_OK);
    dw_checkpoint_close(ckpt);
    ckpt = open_or_fail(path, DW_CHECKPOINT_READ);
    assert_memory_equal(dw_checkpoint_find(ckpt, "w.bytes")->data, "\x14\x15\x63\x17", 4);
    assert_int_equal(dw_checkpoint_sync(ckpt, NULL), DW_OK);
    dw_checkpoint_close(ckpt);
}

/* A sparse file: 2^32 + 2 elements that take no disk. */
TEST(test_beyond_32_bits)
{
    const uint64_t dims[] = {2, ((uint64_t)1 << 31) + 1};
    uint64_t n_data = 2 * dims[0] * dims[1];
    dw_tensor huge = {"huge", DW_BF16, 2, dims, n_data, NULL, 0, NULL};
    dw_writer header = {0};
    assert_int_equal(dw_safetensors_header(&header, &huge, 1, NULL, 0, "f", NULL), DW_OK);
    const char *path = temp_path("huge.safetensors");
    put_file(path, header.bytes, header.n_bytes);
    assert_int_equal(truncate(path, (off_t)(header.n_bytes + n_data)), 0);
    dw_checkpoint *ckpt = open_or_fail(path, DW_CHECKPOINT_WRITE);
    const dw_tensor *t = dw_checkpoint_find(ckpt, "huge");
    assert_true(t->n_bytes == n_data);
    uint8_t *data = t->data;
    data[n_data - 1] = 7;
    assert_int_equal(data[0], 0);
    dw_checkpoint_close(ckpt);

    assert_int_equal(truncate(path, (off_t)(header.n_bytes + n_data - 1)), 0);
    assert_open_refused(
        path, DW_CORRUPT, path,
        "tensor 'huge': data_offsets end at 8589934596 but the file holds "
        "8589934595 bytes of data");
    unlink(path);
    dw_writer_release(&header);
}

TEST(test_what_cannot_be_opened)
{
    const char *path = temp_path("nowhere.safetensors");
    assert_open_refused(path, DW_NOT_FOUND, path,
                        "cannot open: No such file or directory");
    path = temp_path("void");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_open_refused(path, DW_NOT_FOUND, path,
                        "the directory holds no checkpoint: no .safetensors file");
    put_text(temp_path("void/pytorch_model-00001-of-00002.bin"), "PK");
    assert_open_refused(path, DW_UNSUPPORTED, path,
                        "the weights there are files of PyTorch. " DW_CONVERT_TORCH);
    path = temp_path("void");
    put_text(temp_path("void/a.safetensors"), "");
    assert_open_refused(path, DW_CORRUPT, temp_path("void/a.safetensors"),
                        "0 bytes are too few for a safetensors file");
    put_text(temp_path("void/b.safetensors"), "");
    assert_open_refused(path, DW_INVALID, path,
                        "the directory holds 2 .safetensors files and no index: name one "
                        "of them");
    path = temp_path("part");
    assert_int_equal(mkdir(path, 0777), 0);
    put_text(temp_path("part/model-00001-of-00030.safetensors"), "");
    assert_open_refused(path, DW_NOT_FOUND, path,
                        "the directory holds one of 30 shards, and no index");
    /* it can be opened by its own name, and so can a single shard of one */
    path = temp_path("part/model-00001-of-00030.safetensors");
    assert_open_refused(path, DW_CORRUPT, path,
                        "0 bytes are too few for a safetensors file");
    assert_int_equal(rename(path, temp_path("part/model-00001-of-00001.safetensors")), 0);
    assert_open_refused(temp_path("part"), DW_CORRUPT,
                        temp_path("part/model-00001-of-00001.safetensors"),
                        "0 bytes are too few for a safetensors file");
    path = temp_path("fifo.safetensors");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_open_refused(path, DW_INVALID, path, "not a regular file");

    dw_checkpoint *ckpt;
    dw_error err;
    assert_int_equal(dw_checkpoint_open(&ckpt, path, 6, &err), DW_INVALID);
    assert_string_equal(err.text, "unknown flags 0x6");
}

/* ---- shards ----------------------------------------------------------------- */

TEST(test_shards)
{
    const char *dir = temp_path("shards");
    assert_int_equal(dw_checkpoint_write(dir, tensors, N_TENSORS, &sharded, NULL), DW_OK);
    assert_int_equal(count_files(dir), 4);
    assert_holds_tensors(dir);
    assert_holds_tensors(temp_path("shards/model.safetensors.index.json"));

    size_t n_bytes;
    char *index =
        (char *)get_file(temp_path("shards/model.safetensors.index.json"), &n_bytes);
    assert_string_equal(index, "{\n"
                               "  \"metadata\": {\n"
                               "    \"total_size\": 48\n"
                               "  },\n"
                               "  \"weight_map\": {\n"
                               "    \"a.halves\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"empty\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"w.bytes\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"w.floats\": \"model-00002-of-00003.safetensors\",\n"
                               "    \"z.scalar\": \"model-00003-of-00003.safetensors\"\n"
                               "  }\n"
                               "}\n");
    free(index);

    dw_checkpoint *ckpt = open_or_fail(dir, DW_CHECKPOINT_READ);
    assert_int_equal(dw_checkpoint_file_count(ckpt), 3);
    assert_string_equal(dw_checkpoint_file(ckpt, 2),
                        temp_path("shards/model-00003-of-00003.safetensors"));
    dw_checkpoint_close(ckpt);

    dw_error err;
    assert_int_equal(dw_checkpoint_write(dir, tensors, N_TENSORS, &sharded, &err),
                     DW_CONFLICT);
    assert_string_equal(err.text,
                        "a sharded checkpoint is here already: remove it first");
    assert_holds_tensors(dir);

    /* a shard without its index is neither replaced nor removed after a failure */
    assert_int_equal(unlink(temp_path("shards/model.safetensors.index.json")), 0);
    assert_int_equal(
        dw_checkpoint_write(temp_path("shards"), tensors, N_TENSORS, &sharded, &err),
        DW_CONFLICT);
    struct stat st;
    assert_int_equal(stat(temp_path("shards/model-00001-of-00003.safetensors"), &st), 0);
}

TEST(test_shard_limits)
{
    /* one byte: each tensor in its own shard, an empty one with its neighbour */
    const dw_checkpoint_write_options tiny = {.struct_bytes = sizeof tiny,
                                              .max_shard_bytes = 1};
    const char *dir = temp_path("tiny");
    assert_int_equal(dw_checkpoint_write(dir, tensors, N_TENSORS, &tiny, NULL), DW_OK);
    assert_holds_tensors(dir);
    const dw_checkpoint_write_options vast = {.struct_bytes = sizeof vast,
                                              .max_shard_bytes = UINT64_MAX};
    dir = temp_path("vast");
    assert_int_equal(dw_checkpoint_write(dir, tensors, N_TENSORS, &vast, NULL), DW_OK);
    assert_int_equal(count_files(dir), 2);
    assert_holds_tensors(dir);

    dir = temp_path("none");
    assert_int_equal(dw_checkpoint_write(dir, NULL, 0, &vast, NULL), DW_OK);
    dw_checkpoint *ckpt = open_or_fail(dir, DW_CHECKPOINT_READ);
    assert_int_equal(dw_checkpoint_file_count(ckpt), 0);
    assert_null(dw_checkpoint_metadata(ckpt, "format"));
    dw_checkpoint_close(ckpt);
}

/* ---- a broken index --------------------------------------------------------- */

static void put_index(const char *weight_map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"weight_map\":%s}", weight_map);
    put_text(temp_path("idx/model.safetensors.index.json"), text);
}

static void assert_index_refused(const char *weight_map, const char *text)
{
    put_index(weight_map);
    const char *index = temp_path("idx/model.safetensors.index.json");
    assert_open_refused(temp_path("idx"), DW_CORRUPT, index, text);
}

TEST(test_broken_index)
{
    assert_int_equal(mkdir(temp_path("idx"), 0777), 0);
    const char *a = temp_path("idx/a.safetensors");
    const char *b = temp_path("idx/b.safetensors");
    assert_int_equal(dw_checkpoint_write(a, &tensors[0], 2, NULL, NULL), DW_OK);
    assert_int_equal(dw_checkpoint_write(b, &tensors[1], 2, NULL, NULL), DW_OK);

#define PLACED " is not a plain name in this directory"
    assert_index_refused("{\"x\":\"../a\"}", "tensor 'x': its file '../a'" PLACED);
    assert_index_refused("{\"x\":\"..\"}", "tensor 'x': its file '..'" PLACED);
    assert_index_refused("{\"x\":\".\"}", "tensor 'x': its file '.'" PLACED);
    assert_index_refused("{\"x\":\"\"}", "tensor 'x': its file ''" PLACED);
    assert_index_refused("{\"x\":\"/etc/passwd\"}",
                         "tensor 'x': its file '/etc/passwd'" PLACED);
    assert_index_refused("{\"x\":\"sub/a\"}", "tensor 'x': its file 'sub/a'" PLACED);
    assert_index_refused("{\"x\":\"a\\u0000b\"}",
                         "the index is not strict JSON: a NUL in a string (byte 27)");
    assert_index_refused("{\"x\":\"a\",\"x\":\"b\"}",
                         "the index is not strict JSON: an object has a key twice "
                         "(byte 31)");
    assert_index_refused("{\"x\":1}",
                         "tensor 'x': its file in weight_map is not a string");
    assert_index_refused("[]", "the index holds no weight_map object");
    assert_index_refused("{\"w.bytes\":\"a.safetensors\",\"w.floats\":\"a.safetensors\","
                         "\"x\":\"a.safetensors\"}",
                         "tensor 'x': the index places it in 'a.safetensors', which does "
                         "not hold it");

    const char *dir = temp_path("idx");
    put_index("{\"w.bytes\":\"a.safetensors\"}");
    assert_open_refused(dir, DW_CORRUPT, temp_path("idx/a.safetensors"),
                        "tensor 'w.floats': the index does not name it");
    dir = temp_path("idx");
    put_index("{\"w.bytes\":\"a.safetensors\",\"w.floats\":\"a.safetensors\","
              "\"a.halves\":\"b.safetensors\"}");
    assert_open_refused(dir, DW_CORRUPT, temp_path("idx/b.safetensors"),
                        "tensor 'w.floats': it is here, but the index places it in "
                        "'a.safetensors'");
    dir = temp_path("idx");
    put_index("{\"w.bytes\":\"gone.safetensors\"}");
    assert_open_refused(dir, DW_NOT_FOUND, temp_path("idx/gone.safetensors"),
                        "cannot open: No such file or directory");

    const char *index = temp_path("idx/model.safetensors.index.json");
    put_text(index, "");
    assert_open_refused(index, DW_CORRUPT, index, "the index is not a JSON object");
    put_text(index, "[]");
    assert_open_refused(index, DW_CORRUPT, index, "the index is not a JSON object");
    assert_int_equal(truncate(index, 100000001), 0);
    assert_open_refused(index, DW_CORRUPT, index,
                        "100000001 bytes are over the limit of 100000000");
}

/* ---- failures leave nothing ------------------------------------------------- */

static void assert_write_refused(const dw_tensor *list, size_t n,
                                 const dw_checkpoint_write_options *options,
                                 const char *text)
{
    dw_error err = {0};
    const char *path = temp_path("refused");
    assert_int_equal(dw_checkpoint_write(path, list, n, options, &err), DW_INVALID);
    assert_string_equal(err.where, path);
    assert_string_equal(err.text, text);
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST(test_what_cannot_be_written)
{
    const dw_tensor twice[] = {tensors[0], tensors[1], tensors[0]};
    assert_write_refused(twice, 3, NULL, "tensor 'w.bytes': two tensors have this name");
    assert_write_refused(twice, 3, &sharded,
                         "tensor 'w.bytes': two tensors have this name");
    dw_tensor broken = tensors[0];
    broken.data = NULL;
    assert_write_refused(&broken, 1, NULL, "tensor 'w.bytes': it has no data");
    broken = tensors[0];
    broken.dtype = (dw_dtype)-1;
    assert_write_refused(&broken, 1, NULL,
                         "tensor 'w.bytes': its dtype and shape have no size in bytes");
    broken.name = NULL;
    assert_write_refused(&broken, 1, NULL, "tensor 0 has no name");
    const dw_pair pairs[] = {{"k", "1"}, {"k", "2"}};
    const dw_checkpoint_write_options options = {
        .struct_bytes = sizeof options, .metadata = pairs, .n_metadata = 2};
    assert_write_refused(tensors, 1, &options, "metadata 'k' is given twice");

    dw_error err;
    put_text(temp_path("plain"), "x");
    assert_int_equal(
        dw_checkpoint_write(temp_path("plain"), tensors, N_TENSORS, &sharded, &err),
        DW_INVALID);
    assert_string_equal(err.text, "shards need a directory, not a file");
}

/* A limit on file size acts like a full disk: writes fail with EFBIG. */
TEST(test_disk_full)
{
    static uint8_t big[1 << 16];
    const uint64_t dims[] = {sizeof big};
    const dw_tensor list[] = {
        {"a", DW_U8, 1, dims_4, sizeof bytes_4, bytes_4, 0, NULL},
        {"b", DW_U8, 1, dims, sizeof big, big, 0, NULL},
    };
    assert_int_equal(mkdir(temp_path("full"), 0777), 0);
    const char *kept = temp_path("full/kept.safetensors");
    assert_int_equal(dw_checkpoint_write(kept, tensors, N_TENSORS, NULL, NULL), DW_OK);

    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    dw_error err;
    dw_status replaced = dw_checkpoint_write(kept, list, 2, NULL, &err);
    dw_status made =
        dw_checkpoint_write(temp_path("full/shards"), list, 2, &sharded, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);

    assert_int_equal(replaced, DW_IO);
    assert_string_equal(err.where, kept);
    assert_string_equal(err.text, "cannot write: File too large");
    assert_int_equal(made, DW_IO);
    assert_int_equal(count_files(temp_path("full")), 1);
    assert_holds_tensors(kept); /* the old file is unchanged */
}

static dw_status write_single(dw_error *err)
{
    return dw_checkpoint_write(temp_path("alloc/one.safetensors"), tensors, N_TENSORS,
                               NULL, err);
}

static dw_status write_sharded(dw_error *err)
{
    return dw_checkpoint_write(temp_path("alloc/shards"), tensors, N_TENSORS, &sharded,
                               err);
}

static void assert_nothing_written(void)
{
    assert_int_equal(count_files(temp_path("alloc")), 0);
}

static dw_status open_and_close(const char *path, dw_error *err)
{
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, err);
    dw_checkpoint_close(ckpt);
    return status;
}

static dw_status open_only_file(dw_error *err)
{
    return open_and_close(temp_path("alloc"), err);
}

static dw_status open_sharded(dw_error *err)
{
    return open_and_close(temp_path("alloc/shards"), err);
}

TEST(test_allocation_failures)
{
    assert_int_equal(mkdir(temp_path("alloc"), 0777), 0);
    fail_every_allocation(write_single, assert_nothing_written);
    fail_every_allocation(open_only_file, NULL);
    assert_int_equal(unlink(temp_path("alloc/one.safetensors")), 0);
    fail_every_allocation(write_sharded, assert_nothing_written);
    fail_every_allocation(open_sharded, NULL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
