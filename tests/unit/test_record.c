#include "unit/suite.h"
#include <jansson.h>
#include <xxhash.h>

#include "base/json.h"
#include "base/mem.h"
#include "failing_allocator.h"
#include "sample_records.h"
#include "stream/record_files.h"
#include "stream/sign.h"
#include "temp_dir.h"

static dw_sign_key *key;

static int make_key(void **state)
{
    char text[DW_PUBLIC_KEY_TEXT];
    if (temp_dir_make(state) != 0 ||
        dw_sign_key_create(temp_path("key.pem"), text, NULL) != DW_OK)
        return -1;
    return dw_sign_key_open(&key, temp_path("key.pem"), NULL) == DW_OK ? 0 : -1;
}

static int close_key(void **state)
{
    dw_sign_key_close(key);
    return temp_dir_remove(state);
}

static dw_writer sample_bytes(int sample, const dw_sign_key *with)
{
    dw_writer out = {0};
    dw_error err = {0};
    if (write_sample(&out, sample, with, &err) != DW_OK)
        fail_msg("sample %d: %s", sample, err.text);
    return out;
}

/* ---- round trips ---- */

/* Writing a parsed record gives the same bytes, except for new times. */
TEST(test_round_trips)
{
    for (int sample = 0; sample < SAMPLE_COUNT; sample++) {
        dw_writer first = sample_bytes(sample, NULL), again = {0};
        dw_error err = {0};
        assert_int_equal(
            parse_sample(sample, first.bytes, first.n_bytes, NULL, &again, &err), DW_OK);
        assert_int_equal(again.n_bytes, first.n_bytes);
        if (sample != SAMPLE_STREAM && sample != SAMPLE_EPOCH)
            assert_memory_equal(again.bytes, first.bytes, first.n_bytes);
        dw_writer_release(&first);
        dw_writer_release(&again);
    }
}

TEST(test_bytes_are_those_of_the_protocol)
{
    static const char wanted[] =
        "{\"format\":\"deltawire-stream/1\",\"kind\":\"latest\","
        "\"stream\":\"" SAMPLE_STREAM_ID "\",\"version\":17,"
        "\"edges\":[[-1,10,1000000,4],[10,17,900,2],[16,17,200,1]],"
        "\"seal\":\"80607287cb5d1755\"}";
    dw_writer out = sample_bytes(SAMPLE_LATEST, NULL);
    assert_int_equal(out.n_bytes, sizeof wanted - 1);
    assert_memory_equal(out.bytes, wanted, out.n_bytes);
    dw_writer_release(&out);

    static const char commit[] =
        "{\"format\":\"deltawire-stream/1\",\"kind\":\"commit\","
        "\"stream\":\"" SAMPLE_STREAM_ID "\",\"version\":0,\"parent\":null,"
        "\"parent_sha256\":null,\"epoch\":3,\"writer\":\"" SAMPLE_WRITER "\","
        "\"write_id\":\"" SAMPLE_WRITE_ID "\","
        "\"created\":\"2026-11-15T05:20:59.123Z\",\"step\":\"1200\","
        "\"notes\":\"lr 1e-6, \\\\ and a tab\\t\",\"state\":\"0123456789abcdef\","
        "\"changed\":99,\"content\":\"base\",\"base\":\"Qwen/Qwen3-8B\",\"objects\":[],"
        "\"seal\":\"58a6b680cb4f5322\"}";
    out = sample_bytes(SAMPLE_BASE, NULL);
    assert_int_equal(out.n_bytes, sizeof commit - 1);
    assert_memory_equal(out.bytes, commit, out.n_bytes);
    dw_writer_release(&out);
}

TEST(test_stream_members)
{
    dw_writer out = sample_bytes(SAMPLE_STREAM, NULL);
    dw_stream_record r;
    assert_int_equal(dw_stream_record_parse(&r, out.bytes, out.n_bytes, "x", NULL),
                     DW_OK);
    assert_string_equal(r.stream, SAMPLE_STREAM_ID);
    assert_false(r.single_writer);
    assert_false(r.seal.is_signed);
    assert_int_equal(r.n_tensors, SAMPLE_TENSORS);
    for (size_t i = 0; i < SAMPLE_TENSORS; i++) {
        const dw_tensor *a = &r.tensors[i], *b = &sample_tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->n_dims, b->n_dims);
        for (uint32_t d = 0; d < b->n_dims; d++)
            assert_int_equal(a->dims[d], b->dims[d]);
        assert_int_equal(a->n_bytes, b->n_bytes);
        assert_null(a->data);
    }
    dw_stream_record_release(&r);
    dw_writer_release(&out);
}

TEST(test_commit_members)
{
    dw_writer out = sample_bytes(SAMPLE_DELTA, NULL);
    dw_commit_record r, wanted = sample_commit(DW_CONTENT_DELTA);
    assert_int_equal(dw_commit_record_parse(&r, out.bytes, out.n_bytes, "x", NULL),
                     DW_OK);
    assert_int_equal(r.version, 17);
    assert_int_equal(r.epoch, 3);
    assert_string_equal(r.write_id, SAMPLE_WRITE_ID);
    assert_string_equal(r.notes, wanted.notes);
    assert_true(r.state == wanted.state);
    assert_memory_equal(r.parent_sha256, wanted.parent_sha256, DW_SHA256_BYTES);
    assert_memory_equal(&r.times, &wanted.times, sizeof r.times);
    assert_int_equal(r.objects.n, 2);
    assert_int_equal(dw_objects_bytes(&r.objects), 2001);
    for (size_t i = 0; i < 2; i++) {
        const dw_object *a = &r.objects.items[i], *b = &wanted.objects.items[i];
        assert_string_equal(a->key, b->key);
        assert_memory_equal(a->sha256, b->sha256, DW_SHA256_BYTES);
        assert_int_equal(a->n_covers, b->n_covers);
        assert_memory_equal(a->covers, b->covers, b->n_covers * sizeof *b->covers);
    }
    dw_commit_record_release(&r);
    dw_commit_record_release(&r); /* nothing is left to free */
    dw_writer_release(&out);
}

TEST(test_an_empty_time_is_filled)
{
    dw_commit_record r = sample_commit(DW_CONTENT_BASE);
    r.created[0] = '\0';
    dw_writer out = {0};
    assert_int_equal(dw_commit_record_write(&out, &r, NULL, NULL), DW_OK);
    assert_int_equal(strlen(r.created), 24);
    dw_writer_release(&out);
}

/* A restart is a delta that has no objects. */
TEST(test_restart)
{
    dw_commit_record r = sample_commit(DW_CONTENT_DELTA), parsed;
    r.restart = true;
    r.objects = (dw_objects){0};
    r.n_changed = 0;
    dw_writer out = {0};
    dw_error err = {0};
    assert_int_equal(dw_commit_record_write(&out, &r, NULL, &err), DW_OK);
    assert_int_equal(dw_commit_record_parse(&parsed, out.bytes, out.n_bytes, "r", &err),
                     DW_OK);
    assert_true(parsed.restart);
    assert_int_equal(parsed.content, DW_CONTENT_DELTA);
    dw_commit_record_release(&parsed);
    dw_writer_release(&out);
}

/* The writer's name in a record is for people: a reader accepts any text, without control
 * characters. */
TEST(test_provenance_is_cleaned)
{
    static const char forged[] = "\"library\":\"9\\u001b\",\"host\":\"\\u009bx\\r\",";
    dw_writer out = sample_bytes(SAMPLE_DELTA, NULL), other = {0};
    const size_t n_bytes = out.n_bytes;
    dw_write_u8(&out, 0); /* for strstr */
    const char *at = strstr((char *)out.bytes, "\"library\":");
    const char *end = strstr((char *)out.bytes, "\"step\":");
    assert_true(at && end && at < end);
    dw_write_bytes(&other, out.bytes, (size_t)(at - (char *)out.bytes));
    dw_write_text(&other, forged);
    dw_write_bytes(&other, end, (size_t)((char *)out.bytes + n_bytes - end));
    assert_true(reseal((char *)other.bytes, other.n_bytes));
    dw_commit_record r;
    assert_int_equal(dw_commit_record_parse(&r, other.bytes, other.n_bytes, "x", NULL),
                     DW_OK);
    assert_string_equal(r.made_by.library, "9?");
    assert_string_equal(r.made_by.host, "?x?");
    dw_commit_record_release(&r);
    dw_writer_release(&other);
    dw_writer_release(&out);
}

TEST(test_provenance_may_be_missing)
{
    dw_writer out = sample_bytes(SAMPLE_ANCHOR, NULL);
    dw_commit_record r;
    const size_t n_bytes = out.n_bytes;
    dw_write_u8(&out, 0); /* for strstr */
    assert_null(strstr((char *)out.bytes, "\"host\""));
    assert_int_equal(dw_commit_record_parse(&r, out.bytes, n_bytes, "x", NULL), DW_OK);
    assert_string_equal(r.made_by.library, "");
    assert_string_equal(r.made_by.host, "");
    dw_commit_record_release(&r);
    dw_writer_release(&out);
}

/* A record that no reader accepts is not written, and leaves nothing in the writer. */
TEST(test_writers_refuse)
{
    dw_writer out = {0};
    dw_error err = {0};
    dw_write_text(&out, "before");
    dw_commit_record r = sample_commit(DW_CONTENT_DELTA);
    strcpy(r.writer, "not an id");
    assert_int_equal(dw_commit_record_write(&out, &r, key, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "'writer'"));
    r = sample_commit(DW_CONTENT_DELTA);
    r.notes = "\xff";
    assert_int_equal(dw_commit_record_write(&out, &r, NULL, &err), DW_INVALID);
    r = sample_commit(DW_CONTENT_DELTA);
    r.epoch = 1ull << 53;
    assert_int_equal(dw_commit_record_write(&out, &r, NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "'epoch'"));
    dw_tensor tensors[] = {{"w[0:8]", DW_U8, 0, NULL, 1, NULL, 0, NULL}};
    dw_stream_record s = {.stream = SAMPLE_STREAM_ID, .tensors = tensors, .n_tensors = 1};
    assert_int_equal(dw_stream_record_write(&out, &s, NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "tensors[0]"));
    assert_int_equal(out.n_bytes, 6);
    dw_writer_release(&out);
}

/* ---- faults, one at a time ---- */

/* If there is a seal, it is moved to the end and made valid. */
static dw_status parse_json(int sample, json_t *root, dw_error *err)
{
    json_t *seal = json_incref(json_object_get(root, "seal"));
    if (seal) {
        json_object_del(root, "seal");
        json_object_set_new(root, "seal", seal);
    }
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(reseal(text, strlen(text)), seal != NULL);
    *err = (dw_error){0};
    dw_status status = parse_sample(sample, text, strlen(text), NULL, NULL, err);
    free(text);
    return status;
}

/* With member NAME of HOLDER set to VALUE, or missing if VALUE is NULL, the record is
 * refused, and the error names record and member. Owns VALUE. */
static void expect_refused(int sample, json_t *root, json_t *holder, const char *name,
                           json_t *value)
{
    dw_error err;
    char quoted[80];
    json_t *kept = json_incref(json_object_get(holder, name));
    if (value)
        json_object_set(holder, name, value);
    else
        json_object_del(holder, name);
    dw_status status = parse_json(sample, root, &err);
    snprintf(quoted, sizeof quoted, "%s'", name);
    if (status != DW_CORRUPT || !strstr(err.text, quoted) ||
        strcmp(err.where, "some/object") != 0) {
        char *shown = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        fail_msg("sample %d, %s = %.100s: %s, '%s'", sample, name,
                 shown ? shown : "(missing)", dw_status_name(status), err.text);
    }
    if (value)
        json_decref(value);
    json_object_set_new(holder, name, kept);
}

static json_t *long_string(size_t n)
{
    char *text = malloc(n + 1);
    memset(text, 'a', n);
    text[n] = '\0';
    json_t *value = json_string(text);
    free(text);
    return value;
}

static void spoil_member(int sample, json_t *root, json_t *holder, const char *name)
{
    const json_t *value = json_object_get(holder, name);
    bool is_optional = (holder != root && strcmp(name, "covers") == 0) ||
                       strcmp(name, "library") == 0 || strcmp(name, "files") == 0 ||
                       strcmp(name, "quantized") == 0 || strcmp(name, "source") == 0 ||
                       strcmp(name, "times") == 0 || strcmp(name, "start") == 0 ||
                       strcmp(name, "pid") == 0 || strcmp(name, "machine") == 0 ||
                       (strcmp(name, "host") == 0 && sample != SAMPLE_FOLLOWER);
    json_type type = json_typeof(value);
    if (!is_optional)
        expect_refused(sample, root, holder, name, NULL);
    expect_refused(sample, root, holder, name, json_true());
    expect_refused(sample, root, holder, name,
                   type == JSON_ARRAY ? json_object() : json_array());
    if (type == JSON_NULL)
        expect_refused(sample, root, holder, name, json_integer(-1));
    if (type == JSON_INTEGER) {
        expect_refused(sample, root, holder, name, json_integer(-1));
        expect_refused(sample, root, holder, name, json_integer(1ll << 53));
        expect_refused(sample, root, holder, name, json_real(1.5));
        expect_refused(sample, root, holder, name, json_string("1"));
    }
    if (type == JSON_STRING) {
        expect_refused(sample, root, holder, name, json_integer(7));
        expect_refused(sample, root, holder, name, long_string(DW_MAX_NOTE + 1));
    }
}

static void spoil_each_member(int sample, json_t *root, json_t *holder)
{
    char names[32][32];
    size_t n = 0;
    const char *name;
    json_t *value;
    json_object_foreach(holder, name, value)
    {
        assert_true(n < 32 && strlen(name) < 32);
        if (strcmp(name, "seal") != 0)
            strcpy(names[n++], name);
    }
    for (size_t i = 0; i < n; i++)
        spoil_member(sample, root, holder, names[i]);
}

TEST(test_each_member_spoilt)
{
    for (int sample = 0; sample < SAMPLE_COUNT; sample++) {
        dw_writer out = sample_bytes(sample, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        dw_error err;
        spoil_each_member(sample, root, root);
        json_t *fork = json_object_get(root, "fork");
        if (fork)
            spoil_each_member(sample, root, fork);
        json_t *objects = json_object_get(root, "objects");
        for (size_t i = 0; i < json_array_size(objects); i++)
            spoil_each_member(sample, root, json_array_get(objects, i));
        json_t *files = json_object_get(root, "files");
        for (size_t i = 0; i < json_array_size(files); i++)
            spoil_each_member(sample, root, json_array_get(files, i));
        if (parse_json(sample, root, &err) != DW_OK) /* everything was restored */
            fail_msg("sample %d: %s", sample, err.text);
        json_decref(root);
        dw_writer_release(&out);
    }
}

/* Values of the right type that are wrong. */
TEST(test_wrong_values)
{
    static const struct {
        int sample;
        const char *name;
        const char *json;
    } cases[] = {
        {SAMPLE_FLOOR, "kind", "\"latest\""},
        {SAMPLE_FLOOR, "format", "\"gguf\""},
        {SAMPLE_FLOOR, "stream", "\"00112233445566778899AABBCCDDEEFF\""},
        {SAMPLE_FLOOR, "stream", "\"00112233445566778899aabbccddeef\""},
        {SAMPLE_FLOOR, "requires", "\"all\""},
        {SAMPLE_FLOOR, "requires", "[1]"},
        {SAMPLE_STREAM, "writers", "\"many\""},
        {SAMPLE_STREAM, "quantized", "\"fp8-block\""},
        {SAMPLE_STREAM, "quantized", "{}"},
        {SAMPLE_STREAM, "quantized", "{\"scheme\":\"fp8-block\"}"},
        {SAMPLE_STREAM, "quantized", "{\"scheme\":\"\",\"rounded\":\"bf16\"}"},
        {SAMPLE_STREAM, "quantized", "{\"scheme\":\"FP8 \",\"rounded\":\"bf16\"}"},
        {SAMPLE_STREAM, "quantized", "{\"scheme\":\"fp8\",\"rounded\":0}"},
        {SAMPLE_STREAM, "quantized",
         "{\"scheme\":\"fp8-block-of-a-name-that-is-too-long\",\"rounded\":\"bf16\"}"},
        {SAMPLE_STREAM, "created", "\"now\""},
        {SAMPLE_STREAM, "created", "\"\""},
        {SAMPLE_STREAM, "tensors", "[]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\"]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\",[],0]]"},
        {SAMPLE_STREAM, "tensors", "[{\"a\":1}]"},
        {SAMPLE_STREAM, "tensors", "[[1,\"F32\",[]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",1,[]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\",3]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\",[-1]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\",[1.0]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F4\",[3]]]"},
        {SAMPLE_STREAM, "tensors",
         "[[\"a\",\"U8\",[4503599627370496,4503599627370496]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"U8\",[4503599627370496,2]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a\",\"F32\",[]],[\"a\",\"F32\",[]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"b\",\"F32\",[]],[\"a\",\"F32\",[]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"a[0:12]\",\"F32\",[]]]"},
        {SAMPLE_STREAM, "tensors", "[[\"[0:1]\",\"F32\",[]]]"},
        {SAMPLE_DELTA, "version", "0"},
        {SAMPLE_DELTA, "parent", "15"},
        {SAMPLE_DELTA, "parent", "null"},
        {SAMPLE_DELTA, "parent_sha256", "null"},
        {SAMPLE_ANCHOR, "parent", "0"},
        {SAMPLE_DELTA, "state", "\"1fffffffffffffff\""},
        {SAMPLE_DELTA, "state", "\"123456789abcdef\""},
        {SAMPLE_DELTA, "content", "\"anchor\""},
        {SAMPLE_DELTA, "content", "\"patch\""},
        {SAMPLE_ANCHOR, "content", "\"delta\""},
        {SAMPLE_DELTA, "base", "\"x\""},
        {SAMPLE_DELTA, "fork", "{}"},
        {SAMPLE_ANCHOR, "base", "\"x\""},
        {SAMPLE_DELTA, "restart", "true"},
        {SAMPLE_ANCHOR, "restart", "1"},
        {SAMPLE_DELTA, "objects", "[]"},
        {SAMPLE_ANCHOR, "objects", "[]"},
        {SAMPLE_DELTA, "objects", "[1]"},
        {SAMPLE_DELTA, "source", "{}"},
        {SAMPLE_DELTA, "source", "17"},
        {SAMPLE_DELTA, "source", "{\"stream\":\"x\",\"version\":1}"},
        {SAMPLE_DELTA, "source", "{\"stream\":\"" SAMPLE_WRITER "\",\"version\":-1}"},
        {SAMPLE_DELTA, "source", "{\"stream\":\"" SAMPLE_WRITER "\",\"version\":1}"},
        {SAMPLE_DELTA, "files", "[1]"},
        {SAMPLE_DELTA, "files", "null"},
        {SAMPLE_DELTA, "signature", "\"x\""},
        {SAMPLE_DELTA, "key", "\"x\""},
        {SAMPLE_FOLD_WAY, "from", "17"},
        {SAMPLE_FOLD_WAY, "from_sha256", "null"},
        {SAMPLE_ANCHOR_WAY, "objects", "[]"},
        {SAMPLE_RECEIPT, "says", "\"nothing\""},
        {SAMPLE_RECEIPT, "rank", "8"},
        {SAMPLE_RECEIPT, "n_ranks", "0"},
        {SAMPLE_RECEIPT, "n_ranks", "100001"},
        {SAMPLE_RECEIPT, "covers", "[[0]]"},
        {SAMPLE_RECEIPT, "covers", "[[0,1,2,3]]"},
        {SAMPLE_RECEIPT, "covers", "[[1,1]]"},
        {SAMPLE_RECEIPT, "covers", "[[0,-1]]"},
        {SAMPLE_RECEIPT, "covers", "[[0,2],[1,3]]"},
        {SAMPLE_RECEIPT, "covers", "[[2,3],[0,1]]"},
        {SAMPLE_RECEIPT, "covers", "[[0,2],[1,0,3]]"},
        {SAMPLE_RECEIPT, "covers", "[[1,0,3],[1,2]]"},
        {SAMPLE_RECEIPT, "covers", "[[1,0,3],[1,2,4]]"},
        {SAMPLE_LATEST, "edges", "[[0,1,2]]"},
        {SAMPLE_LATEST, "edges", "[[-2,1,2,3]]"},
        {SAMPLE_LATEST, "edges", "[[1,1,2,3]]"},
        {SAMPLE_LATEST, "edges", "[[1,18,2,3]]"},
        {SAMPLE_LATEST, "edges", "[[null,1,2,3]]"},
        {SAMPLE_FOLLOWER, "id", "\"a/b\""},
        {SAMPLE_FOLLOWER, "id", "\".a\""},
        {SAMPLE_FOLLOWER, "status", "\"two words\""},
        {SAMPLE_FOLLOWER, "status", "\"\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_writer out = sample_bytes(cases[i].sample, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        json_t *value = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        dw_error err;
        json_object_set_new(root, cases[i].name, value);
        dw_status status = parse_json(cases[i].sample, root, &err);
        /* a wrong version shows in values that depend on it; n_ranks too */
        const char *named = strcmp(cases[i].name, "version") == 0   ? "parent"
                            : strcmp(cases[i].name, "n_ranks") == 0 ? "rank"
                                                                    : cases[i].name;
        if (status != DW_CORRUPT || !strstr(err.text, named))
            fail_msg("%s = %s: %s, '%s'", cases[i].name, cases[i].json,
                     dw_status_name(status), err.text);
        json_decref(root);
        dw_writer_release(&out);
    }
}

TEST(test_unknown_members_and_features)
{
    static const struct {
        const char *name;
        const char *json;
        dw_status status;
        const char *text;
    } cases[] = {
        {"colour", "{\"red\":1}", DW_OK, ""},
        {"requires", "[]", DW_OK, ""},
        {"requires", "[\"fp4-blocks\",\"x\"]", DW_UNSUPPORTED, "fp4-blocks"},
        {"format", "\"deltawire-stream/2\"", DW_UNSUPPORTED, "deltawire-stream/2"},
        {"tensors", "[[\"a\",\"F128\",[]]]", DW_UNSUPPORTED, "tensors[0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_writer out = sample_bytes(SAMPLE_STREAM, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        dw_error err;
        json_object_set_new(root, cases[i].name,
                            json_loads(cases[i].json, JSON_DECODE_ANY, NULL));
        assert_int_equal(parse_json(SAMPLE_STREAM, root, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].text));
        json_decref(root);
        dw_writer_release(&out);
    }
}

TEST(test_objects_are_checked)
{
    static const char *const keys[] = {
        "commits/00000000000000000017.json", "objects/../stream.json",
        "objects/00000000000000000017-" SAMPLE_WRITE_ID "-0001.safetensors/",
        "objects/00000000000000000017-" SAMPLE_WRITE_ID "-0001.safetensors", /* twice */
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        dw_writer out = sample_bytes(SAMPLE_DELTA, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        json_t *object = json_array_get(json_object_get(root, "objects"), 0);
        dw_error err;
        json_object_set_new(object, "key", json_string(keys[i]));
        assert_int_equal(parse_json(SAMPLE_DELTA, root, &err), DW_CORRUPT);
        assert_non_null(strstr(err.text, i < 3 ? "'objects[0].key'" : "twice"));
        json_decref(root);
        dw_writer_release(&out);
    }
    dw_writer out = sample_bytes(SAMPLE_DELTA, NULL);
    json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
    json_t *object = json_array_get(json_object_get(root, "objects"), 1);
    dw_error err;
    json_object_set_new(object, "covers", json_array());
    assert_int_equal(parse_json(SAMPLE_DELTA, root, &err), DW_CORRUPT);
    assert_non_null(strstr(err.text, "'objects[1].covers'"));
    json_decref(root);
    dw_writer_release(&out);
}

/* A companion file's name never leads out of a directory, to weights or to a file of
 * deltawire's own. */
TEST(test_files_are_checked)
{
    static const struct {
        const char *member;
        const char *json;
        const char *fault;
    } cases[] = {
        {"name", "\"\"", "is empty"},
        {"name", "\"a/b\"", "path"},
        {"name", "\"/etc/passwd\"", "path"},
        {"name", "\"..\"", "dot"},
        {"name", "\".\"", "dot"},
        {"name", "\"../config.json\"", "path"},
        {"name", "\"a\\\\b\"", "path"},
        {"name", "\".deltawire/state.json\"", "path"},
        {"name", "\".deltawire\"", "dot"},
        {"name", "\".Deltawire\"", "dot"},
        {"name", "\"Deltawire.json\"", "deltawire's own"},
        {"name", "\"Model.SafeTensors\"", "weights"},
        {"name", "\"deltawire.json\"", "deltawire's own"},
        {"name", "\"model.safetensors\"", "weights"},
        {"name", "\"model.safetensors.index.json\"", "weights"},
        {"name", "\"a\\nb\"", "control"},
        {"name", "\"a\\u007f\"", "control"},
        {"name", "\"a\\u202eb\"", "control"},
        {"name", "\"zzz.json\"", "come after"}, /* the next name is before it */
        {"name", "\"token\\u00e9.json\"", "come after"},
        {"key", "\"files/../stream.json\"", "no name"},
        {"key", "\"objects/00000000000000000017-" SAMPLE_WRITE_ID "-0001.safetensors\"",
         "no name"},
        {"key", "\"files/17-" SAMPLE_WRITE_ID "-0001\"", "no name"},
        {"key", "\"files/00000000000000000012-" SAMPLE_WRITE_ID "-0001\"", "twice"},
        {"bytes", "67108865", "limit"},
        {"bytes", "67108864", "limit"}, /* with the other's 700 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_writer out = sample_bytes(SAMPLE_DELTA, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        json_t *file = json_array_get(json_object_get(root, "files"), 0);
        dw_error err;
        json_object_set_new(file, cases[i].member,
                            json_loads(cases[i].json, JSON_DECODE_ANY, NULL));
        if (parse_json(SAMPLE_DELTA, root, &err) != DW_CORRUPT ||
            !strstr(err.text, cases[i].fault) || !strstr(err.text, "'files"))
            fail_msg("%s = %s: '%s'", cases[i].member, cases[i].json, err.text);
        json_decref(root);
        dw_writer_release(&out);
    }
}

TEST(test_too_many_files)
{
    static const size_t sizes[] = {DW_MAX_FILES, DW_MAX_FILES + 1, 10000};
    for (size_t s = 0; s < 3; s++) {
        dw_file_entry *items = calloc(sizes[s], sizeof *items);
        dw_commit_record r = sample_commit(DW_CONTENT_DELTA), parsed;
        r.files = (dw_file_list){true, items, sizes[s]};
        for (size_t i = 0; i < sizes[s]; i++) {
            items[i].name = malloc(32);
            snprintf(items[i].name, 32, "f%05zu", i);
            dw_key_file(items[i].key, 17, SAMPLE_WRITE_ID, (unsigned)i);
        }
        dw_writer out = {0};
        dw_error err = {0};
        const bool fits = sizes[s] <= DW_MAX_FILES;
        assert_int_equal(dw_commit_record_write(&out, &r, NULL, &err),
                         fits ? DW_OK : DW_INVALID);
        if (fits) {
            assert_int_equal(
                dw_commit_record_parse(&parsed, out.bytes, out.n_bytes, "x", &err),
                DW_OK);
            assert_int_equal(parsed.files.n, sizes[s]);
            dw_commit_record_release(&parsed);
        } else {
            assert_non_null(strstr(err.text, "over the limit of 1024"));
        }
        dw_writer_release(&out);
        for (size_t i = 0; i < sizes[s]; i++)
            free(items[i].name);
        free(items);
    }
}

/* Without the member a version says nothing about files, which is not the same as none.
 */
TEST(test_files_members)
{
    static const int samples[] = {SAMPLE_DELTA, SAMPLE_ANCHOR, SAMPLE_BASE};
    for (size_t i = 0; i < 3; i++) {
        dw_writer out = sample_bytes(samples[i], NULL);
        dw_commit_record r;
        dw_file_list copy;
        assert_int_equal(dw_commit_record_parse(&r, out.bytes, out.n_bytes, "x", NULL),
                         DW_OK);
        assert_int_equal(r.files.is_given, i < 2);
        assert_int_equal(r.files.n, i == 0 ? 2 : 0);
        assert_int_equal(dw_file_list_copy(&copy, &r.files, NULL), DW_OK);
        dw_commit_record_release(&r);
        assert_int_equal(copy.is_given, i < 2);
        assert_int_equal(dw_file_list_bytes(&copy), i == 0 ? 700 : 0);
        const dw_file_entry *entry = dw_file_list_find(&copy, "config.json");
        assert_int_equal(entry != NULL, i == 0);
        if (entry) {
            assert_string_equal(entry->key,
                                "files/00000000000000000017-" SAMPLE_WRITE_ID "-0000");
            assert_int_equal(entry->sha256[31], 0x50);
        }
        dw_file_list_release(&copy);
        dw_writer_release(&out);
    }
}

TEST(test_files_of_a_writer)
{
    static const uint8_t byte = 1;
    dw_error err;
    dw_file files[2] = {{"b", &byte, DW_MAX_FILES_BYTES}, {"a", NULL, 0}};
    assert_int_equal(dw_files_check(files, 2, &err), DW_OK);
    assert_int_equal(dw_files_check(NULL, 0, &err), DW_OK);
    files[1] = (dw_file){"a", &byte, 1};
    assert_int_equal(dw_files_check(files, 2, &err), DW_INVALID);
    assert_string_equal(err.where, "a");
    assert_non_null(strstr(err.text, "67108864"));
    files[0] = files[1];
    assert_int_equal(dw_files_check(files, 2, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "two companion files"));
    files[0].name = "../a\x1b";
    assert_int_equal(dw_files_check(files, 2, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "path"));
    assert_string_equal(err.where, "../a?");
    files[0].bytes = NULL;
    assert_int_equal(dw_files_check(files, 2, &err), DW_INVALID);
    char long_name[DW_MAX_FILE_NAME + 2];
    memset(long_name, 'x', sizeof long_name);
    long_name[DW_MAX_FILE_NAME + 1] = '\0';
    assert_false(dw_file_name_valid(long_name, NULL));
    long_name[DW_MAX_FILE_NAME] = '\0';
    assert_true(dw_file_name_valid(long_name, NULL));
}

TEST(test_not_json)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"format\":\"deltawire-stream/1\",\"format\":\"x\"",
        "{\"format\":\"a\\u0000\"",
        "{\"format\":\"\xff\"",
        "{\"format\":\"deltawire-stream/1\",\"seal\":1",
        "{\"format\":\"deltawire-stream/1"};
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        dw_error err;
        char text[200];
        snprintf(text, sizeof text, "%s%s", texts[i / 2], i % 2 ? RESEAL_BLANK : "}");
        assert_int_equal(reseal(text, strlen(text)), i % 2);
        assert_int_equal(parse_sample(SAMPLE_DELTA, text, strlen(text), NULL, NULL, &err),
                         DW_CORRUPT);
        assert_int_equal(strstr(err.text, "neither a seal nor a signature") != NULL,
                         i % 2 == 0);
    }
    char *huge = malloc(DW_RECORD_BYTES + 1u);
    memset(huge, ' ', DW_RECORD_BYTES + 1u);
    memcpy(huge, "{}", 2);
    for (int sample = 0; sample < SAMPLE_COUNT; sample++) {
        size_t limit = sample == SAMPLE_LATEST ? DW_LATEST_BYTES
                       : sample == SAMPLE_EPOCH || sample > SAMPLE_LATEST
                           ? DW_SMALL_BYTES
                           : DW_RECORD_BYTES;
        dw_error err;
        assert_int_equal(parse_sample(sample, huge, limit + 1, NULL, NULL, &err),
                         DW_CORRUPT);
        assert_non_null(strstr(err.text, "limit"));
        assert_int_equal(parse_sample(sample, huge, limit, NULL, NULL, &err), DW_CORRUPT);
        assert_non_null(strstr(err.text, "neither a seal nor a signature"));
    }
    free(huge);
}

TEST(test_too_many)
{
    static const struct {
        int sample;
        const char *name;
        size_t limit;
    } cases[] = {
        {SAMPLE_STREAM, "tensors", 1000000},
        {SAMPLE_DELTA, "objects", 65536},
        {SAMPLE_LATEST, "edges", 65536},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_writer out = sample_bytes(cases[i].sample, NULL);
        json_t *root = json_loadb((char *)out.bytes, out.n_bytes, 0, NULL);
        json_t *many = json_array(), *one = json_integer(0);
        dw_error err;
        for (size_t k = 0; k < cases[i].limit; k++)
            json_array_append(many, one);
        json_object_set_new(root, cases[i].name, many);
        assert_int_equal(parse_json(cases[i].sample, root, &err), DW_CORRUPT);
        assert_null(strstr(err.text, "limit")); /* but the entries are bad */
        json_array_append_new(many, one);
        assert_int_equal(parse_json(cases[i].sample, root, &err), DW_CORRUPT);
        assert_non_null(strstr(err.text, "limit"));
        assert_non_null(strstr(err.text, cases[i].name));
        json_decref(root);
        dw_writer_release(&out);
    }
}

/* Every record cut anywhere is refused. */
TEST(test_truncated)
{
    for (int sample = 0; sample < SAMPLE_COUNT; sample++) {
        dw_writer out = sample_bytes(sample, sample < SAMPLE_SIGNED_END ? key : NULL);
        for (size_t n = 0; n < out.n_bytes; n++)
            assert_int_equal(parse_sample(sample, out.bytes, n, NULL, NULL, NULL),
                             DW_CORRUPT);
        dw_writer_release(&out);
    }
}

/* ---- seals ---- */

/* The seal is that of the protocol, and any flipped bit is noticed. */
TEST(test_sealed)
{
    for (int sample = 0; sample < SAMPLE_COUNT; sample++) {
        dw_writer out = sample_bytes(sample, NULL);
        dw_error err;
        char found[17] = {0}, wanted[17];
        memcpy(found, out.bytes + out.n_bytes - 18, 16);
        memset(out.bytes + out.n_bytes - 18, '0', 16);
        snprintf(wanted, sizeof wanted, "%016llx",
                 (unsigned long long)XXH64(out.bytes, out.n_bytes, 0));
        assert_string_equal(found, wanted);
        memcpy(out.bytes + out.n_bytes - 18, found, 16);
        for (size_t i = 0; i < 8 * out.n_bytes; i++) {
            out.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
            dw_status status =
                parse_sample(sample, out.bytes, out.n_bytes, NULL, NULL, &err);
            out.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
            if (status != DW_CORRUPT || !strstr(err.text, "seal"))
                fail_msg("sample %d, bit %zu: %s, '%s'", sample, i,
                         dw_status_name(status), err.text);
        }
        dw_writer_release(&out);
    }
}

/* The error names an unknown format if the seal is good or absent; a bad seal comes
 * first. */
TEST(test_other_format)
{
    static const char later[] = "{\"format\":\"deltawire-stream/2\",\"kind\":\"floor\"";
    char text[sizeof later + sizeof RESEAL_BLANK];
    dw_error err;
    sprintf(text, "%s}", later);
    assert_int_equal(parse_sample(SAMPLE_FLOOR, text, strlen(text), NULL, NULL, &err),
                     DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "deltawire-stream/2"));
    assert_string_equal(err.where, "some/object");
    sprintf(text, "%s%s", later, RESEAL_BLANK);
    assert_int_equal(parse_sample(SAMPLE_FLOOR, text, strlen(text), NULL, NULL, &err),
                     DW_CORRUPT);
    assert_non_null(strstr(err.text, "its seal does not match"));
    assert_true(reseal(text, strlen(text)));
    assert_int_equal(parse_sample(SAMPLE_FLOOR, text, strlen(text), NULL, NULL, &err),
                     DW_UNSUPPORTED);
    /* a format with other signatures */
    dw_writer out = sample_bytes(SAMPLE_DELTA, key);
    memcpy(out.bytes + strlen("{\"format\":\"deltawire-stream/"), "2", 1);
    assert_int_equal(parse_sample(SAMPLE_DELTA, out.bytes, out.n_bytes, NULL, NULL, &err),
                     DW_UNSUPPORTED);
    dw_writer_release(&out);
}

/* ---- signatures ---- */

TEST(test_signed)
{
    uint8_t public_key[DW_PUBLIC_KEY_BYTES], sha256[DW_SHA256_BYTES];
    dw_sign_key_public(key, public_key);
    for (int sample = 0; sample < SAMPLE_SIGNED_END; sample++) {
        dw_writer out = sample_bytes(sample, key);
        dw_record_seal seal;
        dw_error err = {0};
        assert_int_equal(parse_sample(sample, out.bytes, out.n_bytes, &seal, NULL, &err),
                         DW_OK);
        assert_true(seal.is_signed);
        assert_memory_equal(seal.key, public_key, sizeof public_key);
        assert_int_equal(dw_sha256_of(sha256, out.bytes, out.n_bytes, NULL), DW_OK);
        assert_memory_equal(seal.sha256, sha256, sizeof sha256);
        /* as the protocol defines it */
        uint8_t signature[DW_SIGNATURE_BYTES];
        char digits[129] = {0};
        dw_writer text = {0};
        memcpy(digits, out.bytes + out.n_bytes - 130, 128);
        assert_true(dw_hex_decode(signature, sizeof signature, digits));
        dw_write_text(&text, "deltawire-stream/1\n");
        dw_write_bytes(&text, out.bytes, out.n_bytes - 130);
        for (int i = 0; i < 128; i++)
            dw_write_u8(&text, '0');
        dw_write_text(&text, "\"}");
        assert_int_equal(
            dw_sign_verify(public_key, signature, text.bytes, text.n_bytes, &err), DW_OK);
        dw_writer_release(&text);
        dw_writer_release(&out);
    }
}

TEST(test_written_seal)
{
    dw_writer out = {0};
    uint8_t sha256[DW_SHA256_BYTES];
    dw_commit_record r = sample_commit(DW_CONTENT_DELTA);
    for (int i = 0; i < 2; i++) { /* the second record follows the first */
        size_t start = out.n_bytes;
        assert_int_equal(dw_commit_record_write(&out, &r, i ? key : NULL, NULL), DW_OK);
        assert_int_equal(r.seal.is_signed, i == 1);
        dw_sha256_of(sha256, out.bytes + start, out.n_bytes - start, NULL);
        assert_memory_equal(r.seal.sha256, sha256, sizeof sha256);
        assert_int_equal(parse_sample(SAMPLE_DELTA, out.bytes + start,
                                      out.n_bytes - start, NULL, NULL, NULL),
                         DW_OK);
    }
    dw_writer_release(&out);
}

/* No byte of a signed record can be altered. */
TEST(test_altered)
{
    dw_writer out = sample_bytes(SAMPLE_DELTA, key);
    size_t n_untrusted = 0;
    for (size_t i = 0; i < out.n_bytes; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            out.bytes[i] ^= (uint8_t)(1u << bit);
            dw_status status =
                parse_sample(SAMPLE_DELTA, out.bytes, out.n_bytes, NULL, NULL, NULL);
            out.bytes[i] ^= (uint8_t)(1u << bit);
            if (status != DW_CORRUPT && status != DW_UNTRUSTED &&
                status != DW_UNSUPPORTED)
                fail_msg("byte %zu, bit %u: %s", i, bit, dw_status_name(status));
            n_untrusted += status == DW_UNTRUSTED;
        }
    }
    assert_true(n_untrusted > out.n_bytes);
    dw_writer_release(&out);
}

/* Where TEXT is for the last time. */
static size_t find(const dw_writer *out, const char *text)
{
    for (size_t i = out->n_bytes - strlen(text) + 1; i-- > 0;)
        if (memcmp(out->bytes + i, text, strlen(text)) == 0)
            return i;
    fail_msg("no %s", text);
    return 0;
}

/* A good signature with another key, and the signature of another record. */
TEST(test_foreign)
{
    char text[DW_PUBLIC_KEY_TEXT];
    dw_sign_key *other = NULL;
    assert_int_equal(dw_sign_key_create(temp_path("other.pem"), text, NULL), DW_OK);
    assert_int_equal(dw_sign_key_open(&other, temp_path("other.pem"), NULL), DW_OK);
    unlink(temp_path("other.pem"));
    dw_writer a = sample_bytes(SAMPLE_DELTA, key);
    dw_writer b = sample_bytes(SAMPLE_DELTA, other);
    dw_writer c = sample_bytes(SAMPLE_ANCHOR, key);
    dw_error err;
    /* the other's key in place of a's */
    dw_writer mixed = {0};
    dw_write_bytes(&mixed, a.bytes, a.n_bytes);
    size_t key_at = find(&a, ",\"key\":\"");
    memcpy(mixed.bytes + key_at, b.bytes + key_at, 8 + 64);
    assert_int_equal(
        parse_sample(SAMPLE_DELTA, mixed.bytes, mixed.n_bytes, NULL, NULL, &err),
        DW_UNTRUSTED);
    assert_string_equal(err.where, "some/object");
    assert_non_null(strstr(err.text, text)); /* the error names the expected key */
    /* c's signature under a's text */
    memcpy(mixed.bytes, a.bytes, a.n_bytes);
    memcpy(mixed.bytes + a.n_bytes - 130, c.bytes + c.n_bytes - 130, 130);
    assert_int_equal(
        parse_sample(SAMPLE_DELTA, mixed.bytes, mixed.n_bytes, NULL, NULL, &err),
        DW_UNTRUSTED);
    dw_writer_release(&a);
    dw_writer_release(&b);
    dw_writer_release(&c);
    dw_writer_release(&mixed);
    dw_sign_key_close(other);
}

static dw_status parse_text(const char *text, dw_error *err)
{
    return parse_sample(SAMPLE_DELTA, text, strlen(text), NULL, NULL, err);
}

/* The members must be at the end, in that spelling, or the record is refused. */
TEST(test_moved)
{
    dw_writer out = sample_bytes(SAMPLE_DELTA, key);
    dw_error err;
    size_t n = out.n_bytes;
    char *text = calloc(n + 64, 1);
    /* first instead of last */
    json_t *root = json_loadb((char *)out.bytes, n, 0, NULL);
    json_t *turned = json_object();
    json_object_set(turned, "key", json_object_get(root, "key"));
    json_object_set(turned, "signature", json_object_get(root, "signature"));
    json_object_update_missing(turned, root);
    assert_int_equal(parse_json(SAMPLE_DELTA, turned, &err), DW_CORRUPT);
    assert_non_null(strstr(err.text, "neither a seal nor a signature"));
    /* before a seal */
    json_object_set_new(turned, "seal", json_string(DW_SEAL_BLANK));
    assert_int_equal(parse_json(SAMPLE_DELTA, turned, &err), DW_CORRUPT);
    assert_non_null(strstr(err.text, "'key' does not belong"));
    json_decref(turned);
    /* another member, white space or a line end after it */
    static const char *const ends[] = {",\"x\":1}", " }", "}\n", "}"};
    for (size_t i = 0; i < 4; i++) {
        memcpy(text, out.bytes, n - 1);
        strcpy(text + n - 1, ends[i]);
        assert_int_equal(parse_text(text, &err), i == 3 ? DW_OK : DW_CORRUPT);
    }
    /* an escape in a name, upper-case digits */
    size_t at = find(&out, "\"signature\"");
    memcpy(text, out.bytes, at);
    sprintf(text + at, "\"\\u0073ignature\"%.*s", (int)(n - at - 11),
            (char *)out.bytes + at + 11);
    assert_int_equal(parse_text(text, &err), DW_CORRUPT);
    memcpy(text, out.bytes, n);
    text[n] = '\0';
    for (size_t i = n - 130; i < n; i++)
        if (text[i] >= 'a' && text[i] <= 'f')
            text[i] = (char)(text[i] - 32);
    assert_int_equal(parse_text(text, &err), DW_CORRUPT);
    /* only one of the two, and neither */
    json_object_del(root, "key");
    assert_int_equal(parse_json(SAMPLE_DELTA, root, &err), DW_CORRUPT);
    assert_non_null(strstr(err.text, "neither a seal nor a signature"));
    json_object_del(root, "signature");
    assert_int_equal(parse_json(SAMPLE_DELTA, root, &err), DW_CORRUPT);
    json_object_set_new(root, "seal", json_string(DW_SEAL_BLANK));
    assert_int_equal(parse_json(SAMPLE_DELTA, root, &err), DW_OK);
    json_decref(root);
    free(text);
    dw_writer_release(&out);
}

/* ---- memory ---- */

static int failing_sample;

static dw_status write_and_parse(dw_error *err)
{
    const dw_sign_key *with = failing_sample < SAMPLE_SIGNED_END ? key : NULL;
    dw_writer out = {0}, again = {0};
    dw_status status = write_sample(&out, failing_sample, with, err);
    if (status == DW_OK)
        status = parse_sample(failing_sample, out.bytes, out.n_bytes, NULL, &again, err);
    dw_writer_release(&out);
    dw_writer_release(&again);
    return status;
}

TEST(test_no_memory)
{
    for (failing_sample = 0; failing_sample < SAMPLE_COUNT; failing_sample++)
        fail_every_allocation(write_and_parse, NULL);
}

RUN_TESTS(make_key, close_key)
