/* labels: single */
/* The reader of JSON: jansson must agree on what is valid, and hostile texts are refused
 * before memory is allocated for them. */
#include "unit/suite.h"
#include <jansson.h>

#include "base/json_tree.h"
#include "deltawire/deltawire.h"

static void assert_same(const dw_json *v, const json_t *j)
{
    assert_int_equal(dw_json_is_object(v), json_is_object(j));
    assert_int_equal(dw_json_is_array(v), json_is_array(j));
    assert_int_equal(dw_json_is_null(v), json_is_null(j));
    assert_int_equal(dw_json_string(v) != NULL, json_is_string(j));
    int64_t number = 0;
    assert_int_equal(dw_json_integer(v, &number), json_is_integer(j));
    assert_int_equal(number, json_integer_value(j));
    if (json_is_string(j))
        assert_string_equal(dw_json_string(v), json_string_value(j));
    if (json_is_array(j)) {
        size_t i = 0;
        for (const dw_json *it = dw_json_first(v); it; it = dw_json_next(v, it))
            assert_same(it, json_array_get(j, i++));
        assert_int_equal(i, json_array_size(j));
        assert_int_equal(dw_json_size(v), i);
    }
    if (json_is_object(j)) {
        size_t i = 0;
        for (const dw_json *k = dw_json_first(v); k; k = dw_json_next(v, k), i++) {
            assert_same(dw_json_value(k), json_object_get(j, dw_json_string(k)));
            assert_ptr_equal(dw_json_get(v, dw_json_string(k)), dw_json_value(k));
        }
        assert_int_equal(i, json_object_size(j));
        assert_null(dw_json_get(v, "no such member"));
    }
}

static void compare(const char *text, size_t n)
{
    /* in a block of the exact size, so that the sanitizer notices a read past it */
    char *exact = malloc(n ? n : 1);
    memcpy(exact, text, n);
    dw_json *root;
    dw_error err = {0};
    dw_status status = dw_json_read(&root, exact, n, "text", "here", &err);
    json_error_t fault;
    json_t *other = json_loadb(exact, n, JSON_REJECT_DUPLICATES, &fault);
    bool good = json_is_object(other);
    /* real numbers are not used here, so they may have any size */
    if (!other && json_error_code(&fault) == json_error_numeric_overflow &&
        strpbrk(text, "eE"))
        good = status == DW_OK;
    else if (good != (status == DW_OK))
        fail_msg("'%.*s': %s", (int)n, text, err.text);
    if (good && other)
        assert_same(root, other);
    if (!good)
        assert_int_equal(status, DW_CORRUPT);
    json_decref(other);
    dw_json_free(root);
    free(exact);
}

static const char *const texts[] = {
    "{}",
    " \t\r\n{ \"a\" : [ 1 , -2 , 0 , -0 ] , \"b\" : { } }\n",
    "{\"\":\"\",\"a\":null,\"t\":true,\"f\":false}",
    "{\"s\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"}",
    "{\"\xc3\xa9\":\"\xe2\x82\xac\xf0\x9f\x98\x80\"}",
    "{\"n\":[9223372036854775807,-9223372036854775808]}",
    "{\"n\":9223372036854775808}",
    "{\"n\":-9223372036854775809}",
    "{\"n\":[1.5,-0.25,1e5,1E+5,2e-3]}",
    "{\"n\":01}",
    "{\"n\":1.}",
    "{\"n\":.5}",
    "{\"n\":-}",
    "{\"n\":1e}",
    "{\"n\":+1}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"\\u0061\":2}",
    "{\"x\":{\"a\":1,\"b\":2,\"a\":3}}",
    "{\"k\":1,\"j\":1,\"i\":1,\"h\":1,\"g\":1,\"f\":1,\"e\":1,\"d\":1,\"c\":1}",
    "{\"k\":1,\"j\":1,\"i\":1,\"h\":1,\"g\":1,\"f\":1,\"e\":1,\"d\":1,\"c\":1,\"k\":1}",
    "{\"a\":\"\\u0000\"}",
    "{\"a\":\"\\ud800\"}",
    "{\"a\":\"\\ude00\"}",
    "{\"a\":\"\\ud800\\u0041\"}",
    "{\"a\":\"\\x\"}",
    "{\"a\":\"\\u12g4\"}",
    "{\"a\":\"\n\"}",
    "{\"a\":\"\xff\"}",
    "{\"a\":\"\xc0\xaf\"}",
    "{\"a\":\"\xed\xa0\x80\"}",
    "{\"a\":\"\xf4\x90\x80\x80\"}",
    "{\"a\":nul}",
    "{\"a\":NaN}",
    "{\"a\":1,}",
    "{\"a\":[1,]}",
    "{\"a\":[,1]}",
    "{\"a\" 1}",
    "{a:1}",
    "{'a':1}",
    "{}{}",
    "{}x",
    "[]",
    "1",
    "\"a\"",
    "",
    " ",
};

TEST(test_agrees_with_jansson)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t n = 0; n <= strlen(texts[i]); n++)
            compare(texts[i], n);
    compare("{\"a\":\"\0\"}", 9);
    compare("{}\0", 3);
}

/* Random bytes of JSON's alphabet, and valid texts with one byte changed. */
TEST(test_random_texts)
{
    static const char bytes[] = "{}[]\",:\\ut0123-.eE \n\xc3\xa9\xff"
                                "abfn";
    uint64_t seed = 42;
    for (unsigned round = 0; round < 20000; round++) {
        char text[256] = "{\"a\":[";
        size_t n = 6;
        for (unsigned i = 0; i < 12; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            text[n++] = bytes[(seed >> 33) % (sizeof bytes - 1)];
        }
        compare(text, n);
        const char *good = texts[round % 6];
        n = strlen(good);
        memcpy(text, good, n);
        text[(seed >> 20) % n] = bytes[(seed >> 33) % (sizeof bytes - 1)];
        compare(text, n);
    }
}

/* ---- bounds ---- */

/* Counts the allocated bytes, with a size in front of each block. */
static size_t held, peak;

static void *counting_reallocate(void *context, void *pointer, size_t n_bytes)
{
    (void)context;
    size_t *block = pointer ? (size_t *)pointer - 2 : NULL;
    held -= block ? block[0] : 0;
    block = realloc(block, n_bytes + 2 * sizeof *block);
    block[0] = n_bytes;
    held += n_bytes;
    peak = held > peak ? held : peak;
    return block + 2;
}

static void *counting_allocate(void *context, size_t n_bytes)
{
    return counting_reallocate(context, NULL, n_bytes);
}

static void counting_release(void *context, void *pointer)
{
    (void)context;
    size_t *block = pointer ? (size_t *)pointer - 2 : NULL;
    held -= block ? block[0] : 0;
    free(block);
}

/* "{"a":[" PIECE "," PIECE ... "]}" of N bytes or a little less. */
static char *repeat(const char *piece, size_t n, size_t *n_text)
{
    char *text = malloc(n + 64);
    size_t n_piece = strlen(piece), at = 6;
    memcpy(text, "{\"a\":[", 6);
    while (at + n_piece + 3 < n) {
        memcpy(text + at, piece, n_piece);
        at += n_piece;
        text[at++] = ',';
    }
    memcpy(text + at - 1, "]}", 2);
    *n_text = at + 1;
    return text;
}

TEST(test_hostile)
{
    enum { N_BYTES = 60 << 20 };
    dw_set_allocator(
        &(dw_allocator){counting_allocate, counting_reallocate, counting_release, NULL});
    static const char *const pieces[] = {"[]", "{}", "0", "\"\"", "[0,0]", "{\"\":0}"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        size_t n;
        char *text = repeat(pieces[i], N_BYTES, &n);
        peak = held = 0;
        dw_json *root;
        dw_error err = {0};
        dw_status status = dw_json_read(&root, text, n, "record", "r.json", &err);
        /* refused without allocating, or read within the bound */
        if (status != DW_OK)
            assert_non_null(strstr(err.text, "too many values"));
        assert_true(peak <= (status == DW_OK ? (64u << 20) + 3 * n : 0));
        dw_json_free(root);
        assert_int_equal(held, 0);
        free(text);
    }
    dw_set_allocator(NULL);
}

TEST(test_depth)
{
    for (int deep = 0; deep < 2; deep++) {
        char text[4 * DW_JSON_MAX_DEPTH] = "{\"a\":";
        size_t n = 5, depth = DW_JSON_MAX_DEPTH - 1 + (size_t)deep;
        memset(text + n, '[', depth);
        memset(text + n + depth, ']', depth);
        n += 2 * depth;
        text[n++] = '}';
        dw_json *root;
        dw_error err = {0};
        dw_status status = dw_json_read(&root, text, n, "record", "r.json", &err);
        assert_int_equal(status, deep ? DW_CORRUPT : DW_OK);
        assert_int_equal(strstr(err.text, "too deeply") != NULL, deep);
        dw_json_free(root);
    }
}

/* Many keys in any order: duplicates are found in less than quadratic time. */
TEST(test_many_keys)
{
    enum { N_KEYS = 300000 };
    for (int twice = 0; twice < 2; twice++) {
        char *text = malloc(N_KEYS * 16 + 16);
        size_t n = 1;
        text[0] = '{';
        for (unsigned i = 0; i < N_KEYS; i++)
            n += (size_t)sprintf(text + n, "\"%u\":0,", i * 7919u % N_KEYS);
        n += (size_t)sprintf(text + n, "\"%s\":0}", twice ? "12345" : "last");
        dw_json *root;
        dw_error err = {0};
        dw_status status = dw_json_read(&root, text, n, "record", "r.json", &err);
        assert_int_equal(status, twice ? DW_CORRUPT : DW_OK);
        dw_json_free(root);
        free(text);
    }
}

/* Numbers that Python's json module writes, for texts that it reads. */
TEST(test_numbers_of_python)
{
    static const char good[] = "{\"a\":[NaN,Infinity,-Infinity,-1,9223372036854775808,"
                               "-99999999999999999999999999999999],\"b\":2}";
    static const char *const bad[] = {"{\"a\":-Inf}",    "{\"a\":-I",   "{\"a\":-",
                                      "{\"a\":Infinit}", "{\"a\":nan}", "{\"a\":+NaN}",
                                      "{\"a\":-NaN}",    "{\"a\":0123}"};
    dw_json *root;
    dw_error err = {0};
    const size_t n_good = sizeof good - 1;
    assert_int_equal(dw_json_read(&root, good, n_good, "text", NULL, &err), DW_CORRUPT);
    assert_int_equal(dw_json_read_python(&root, good, n_good, "text", NULL, &err), DW_OK);
    const dw_json *list = dw_json_get(root, "a");
    size_t n = 0;
    for (const dw_json *it = dw_json_first(list); it; it = dw_json_next(list, it), n++) {
        int64_t number;
        assert_int_equal(dw_json_integer(it, &number), n == 3);
    }
    assert_int_equal(n, 6);
    uint64_t two;
    assert_true(dw_json_unsigned(dw_json_get(root, "b"), &two) && two == 2);
    dw_json_free(root);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const size_t n_bad = strlen(bad[i]);
        char *exact = malloc(n_bad);
        memcpy(exact, bad[i], n_bad);
        if (dw_json_read_python(&root, exact, n_bad, "text", NULL, &err) != DW_CORRUPT)
            fail_msg("%s", bad[i]);
        free(exact);
    }
}

/* A text that is no object, and both truth values. */
TEST(test_any)
{
    static const char text[] = "[true,false,0,\"true\",null]";
    dw_json *root;
    dw_error err;
    assert_int_equal(dw_json_read(&root, text, strlen(text), "text", NULL, &err),
                     DW_CORRUPT);
    assert_int_equal(dw_json_read_any(&root, text, strlen(text), "text", NULL, &err),
                     DW_OK);
    assert_true(dw_json_is_array(root));
    const dw_json *it = dw_json_first(root);
    bool v = false;
    assert_true(dw_json_bool(it, &v) && v);
    it = dw_json_next(root, it);
    assert_true(dw_json_bool(it, &v) && !v);
    while ((it = dw_json_next(root, it)))
        assert_false(dw_json_bool(it, &v));
    assert_false(dw_json_bool(NULL, &v));
    dw_json_free(root);
    assert_int_equal(dw_json_read_any(&root, NULL, 0, "text", NULL, &err), DW_CORRUPT);
    assert_int_equal(
        dw_json_read_any(&root, "[{\"a\":1,\"a\":2}]", 15, "text", NULL, &err),
        DW_CORRUPT);
}

RUN_TESTS(NULL, NULL)
