/* The tokenizer by itself: merges in order, added tokens, and files that must be refused.
 * test_tokenizer.py compares it with the `tokenizers` library. */
#include <stdbool.h>
#include <stdio.h>

#include "small_model.h"
#include "tokenizer.h"
#include "unit/temp_dir.h"

#define PRE                                                                              \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_"        \
    "regex\":false}"
#define HEAD "{\"normalizer\":null," PRE ",\"added_tokens\":[" ADDED "],\"model\":"
#define ADDED                                                                            \
    "{\"id\":9,\"content\":\"<e>\",\"special\":true},{\"id\":8,\"content\":\"<ef>\"}"
#define VOCAB                                                                            \
    "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"\xc4\x8a\":6}"
#define MODEL "{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b c\",[\"a\",\"b\"],\"a bc\"]}"

static const char good[] = HEAD MODEL "}";

static dw_status open_text(tokenizer **tok, const char *text, dw_error *err)
{
    put_text(temp_path("tokenizer.json"), text);
    return tokenizer_open(tok, temp_dir, err);
}

static void expect(const tokenizer *tok, const char *text, size_t n,
                   const int32_t *expected)
{
    int32_t ids[32];
    assert_int_equal(tokenizer_encode(tok, text, strlen(text), ids, 32), n);
    assert_memory_equal(ids, expected, n * sizeof *ids);
}

static void test_encode(void **state)
{
    (void)state;
    tokenizer *tok;
    dw_error err;
    assert_ok(open_text(&tok, good, &err), err);
    expect(tok, "", 0, NULL);
    expect(tok, "abc", 1, (int32_t[]){5}); /* b c first, then a bc */
    expect(tok, "abab", 2, (int32_t[]){3, 3});
    expect(tok, "aabcb", 3, (int32_t[]){0, 5, 1});
    expect(tok, "a\nb", 3, (int32_t[]){0, 6, 1});
    expect(tok, "a?b", 1, (int32_t[]){3}); /* no token for '?' */
    expect(tok, "a<e>b<ef><e", 4, (int32_t[]){0, 9, 1, 8});
    assert_int_equal(tokenizer_size(tok), 10);
    assert_int_equal(tokenizer_added(tok, "<e>"), 9);
    assert_int_equal(tokenizer_added(tok, "<"), -1);
    assert_true(tokenizer_is_special(tok, 9));
    assert_false(tokenizer_is_special(tok, 8) || tokenizer_is_special(tok, -1));
    tokenizer_close(tok);
}

/* The count is of the whole text, even if there is less room. */
static void test_room(void **state)
{
    (void)state;
    tokenizer *tok;
    dw_error err;
    assert_ok(open_text(&tok, good, &err), err);
    int32_t ids[4] = {-1, -1, -1, -1};
    assert_int_equal(tokenizer_encode(tok, "acacac", 6, ids, 2), 6);
    assert_memory_equal(ids, ((int32_t[]){0, 2, -1, -1}), sizeof ids);
    char text[8] = "-------";
    assert_int_equal(tokenizer_decode(tok, (int32_t[]){5, 9, 77, -3, 7, 6}, 6, text, 4),
                     7);
    assert_memory_equal(text, "abc<---", 7);
    assert_int_equal(tokenizer_decode(tok, ids, 0, NULL, 0), 0);
    tokenizer_close(tok);
}

static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        dw_status code;
    } cases[] = {
        {"\"BPE\"", "\"WordPiece\"", DW_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"unk_token\":\"a\"", DW_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"dropout\":0.1", DW_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"ignore_merges\":true", DW_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"byte_fallback\":true", DW_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"end_of_word_suffix\":\"</w>\"", DW_UNSUPPORTED},
        {"\"a\":0", "\"a\":-1", DW_CORRUPT},
        {"\"a\":0", "\"a\":1", DW_CORRUPT},
        {"\"a\":0", "\"a\":4194304", DW_CORRUPT},
        {"\"a\":0", "\"a\":99999999999999", DW_CORRUPT},
        {"\"a\":0", "\"a\":\"0\"", DW_CORRUPT},
        {"\"a\":0", "\"a\":0,\"a\":7", DW_CORRUPT},
        {"\"a\":0", "\"a\":0,\"x y\":7", DW_UNSUPPORTED},
        {"\"a\":0", "\"a\":0,\"\xe6\xbc\xa2\":7", DW_UNSUPPORTED},
        {"\"a\":0", "\"a\":0,\"\":7", DW_UNSUPPORTED},
        {"\"b c\"", "\"b x\"", DW_CORRUPT},
        {"\"b c\"", "\"c b\"", DW_CORRUPT},
        {"\"b c\"", "\"bc\"", DW_CORRUPT},
        {"\"b c\"", "[\"b\"]", DW_CORRUPT},
        {"\"b c\"", "[\"b\",1]", DW_CORRUPT},
        {"\"b c\"", "{}", DW_CORRUPT},
        {"\"merges\":[", "\"merge\":[", DW_CORRUPT},
        {"\"id\":9", "\"id\":-9", DW_CORRUPT},
        {"\"id\":9", "\"id\":4294967295", DW_CORRUPT},
        {"\"<e>\"", "\"\"", DW_CORRUPT},
        {"\"<e>\"", "5", DW_CORRUPT},
        {"\"<e>\"", "\"<e>\",\"lstrip\":true", DW_UNSUPPORTED},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", DW_UNSUPPORTED},
        {"\"normalizer\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
         DW_UNSUPPORTED},
        {PRE, "\"pre_tokenizer\":null", DW_UNSUPPORTED},
        {PRE, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":7}",
         DW_UNSUPPORTED},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
         "\"Split\","
         "\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}]}",
         DW_CORRUPT},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", DW_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        const char *found = strstr(good, cases[i].from);
        assert_non_null(found);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(found - good), good, cases[i].to,
                 found + strlen(cases[i].from));
        tokenizer *tok = NULL;
        dw_error err = {0};
        if (open_text(&tok, text, &err) != cases[i].code || err.text[0] == '\0')
            fail_msg("%s: %d, %s", cases[i].to, (int)err.code, err.text);
    }
    static const char *const broken[] = {"", "{", "[]", "null", "{}", "{\"model\":[]}"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        tokenizer *tok;
        dw_error err;
        assert_int_equal(open_text(&tok, broken[i], &err), DW_CORRUPT);
    }
    tokenizer *tok;
    dw_error err;
    assert_int_equal(tokenizer_open(&tok, "/nowhere", &err), DW_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
