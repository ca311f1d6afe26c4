#include "unit/suite.h"

#include "stream/record.h"

#define ID "0123456789abcdef0123456789abcdef"
#define V7 "00000000000000000007"

static const uint64_t numbers[] = {0, 7, 9999999999, 10000000000, (1ull << 53) - 1};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

TEST(test_spelling)
{
    char key[DW_KEY_TEXT];
    dw_key_commit(key, 7);
    assert_string_equal(key, "commits/" V7 ".json");
    dw_key_shortcut(key, 17, 7);
    assert_string_equal(key, "ways/00000000000000000017-from-" V7 ".json");
    dw_key_shortcut(key, 7, DW_NO_VERSION);
    assert_string_equal(key, "ways/" V7 "-anchor.json");
    dw_key_epoch(key, 12);
    assert_string_equal(key, "epochs/0000000012.json");
    dw_key_receipt(key, 12, 65);
    assert_string_equal(key, "receipts/0000000012-00065.json");
    dw_key_follower(key, "node-7");
    assert_string_equal(key, "followers/node-7.json");
    dw_key_object(key, 7, ID, NULL, 3);
    assert_string_equal(key, "objects/" V7 "-" ID "-0003.safetensors");
    dw_key_object(key, 7, ID, "fold", 12345);
    assert_string_equal(key, "objects/" V7 "-" ID "-fold-12345.safetensors");
    dw_key_object(key, 7, ID, "anchor", 0);
    assert_string_equal(key, "objects/" V7 "-" ID "-anchor-0000.safetensors");
    dw_key_file(key, 7, ID, 12);
    assert_string_equal(key, "files/" V7 "-" ID "-0012");
    /* the longest */
    dw_key_shortcut(key, UINT64_MAX, UINT64_MAX - 1);
    assert_string_equal(key + strlen(key) - 5, ".json");
}

TEST(test_inverses)
{
    static const char *const purposes[] = {NULL, "fold", "anchor"};
    char key[DW_KEY_TEXT];
    uint64_t version, from;
    bool of_way;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        dw_key_commit(key, numbers[i]);
        assert_true(dw_key_is_commit(key, &version));
        assert_true(version == numbers[i]);
        dw_key_epoch(key, numbers[i]);
        assert_true(dw_key_is_epoch(key, &version));
        assert_true(version == numbers[i]);
        dw_key_shortcut(key, numbers[i], DW_NO_VERSION);
        assert_true(dw_key_is_shortcut(key, &version, &from));
        assert_true(version == numbers[i] && from == DW_NO_VERSION);
        dw_key_shortcut(key, numbers[i], numbers[N_NUMBERS - 1 - i]);
        assert_true(dw_key_is_shortcut(key, &version, &from));
        assert_true(version == numbers[i] && from == numbers[N_NUMBERS - 1 - i]);
        dw_key_receipt(key, numbers[i], UINT32_MAX);
        assert_true(dw_key_is_receipt(key, &version));
        assert_true(version == numbers[i]);
        dw_key_file(key, numbers[i], ID, UINT32_MAX);
        assert_true(dw_key_is_file(key, &version));
        assert_true(version == numbers[i]);
        assert_false(dw_key_is_object(key, &version, &of_way));
        for (size_t p = 0; p < 3; p++) {
            dw_key_object(key, numbers[i], ID, purposes[p], p == 2 ? UINT32_MAX : 5);
            assert_true(dw_key_is_object(key, &version, &of_way));
            assert_true(version == numbers[i] && of_way == (p > 0));
        }
    }
}

TEST(test_others_are_refused)
{
    static const char *const keys[] = {
        "",
        "commits/",
        "commits/7.json",
        "commits/" V7,
        "commits/" V7 ".json.tmp",
        "commits/0" V7 ".json",
        "commits/0000000000000000000x.json",
        "commits/-0000000000000000007.json",
        "commits/00009007199254740992.json", /* 2^53 */
        "commits/99999999999999999999.json",
        "commits/99999999999999999999999999999999999999999999.json",
        "epochs/12.json",
        "epochs/00000000012.json",
        "epochs/0000000012",
        "ways/" V7 ".json",
        "ways/" V7 "-from-.json",
        "ways/" V7 "-from-7.json",
        "ways/" V7 "-from-18446744073709551615.json",
        "ways/" V7 "-from-" V7 "-anchor.json",
        "objects/" V7 "-" ID "-0003.safetensors.tmp",
        "objects/" V7 "-" ID "-003.safetensors",
        "objects/" V7 "-" ID "-00003.safetensors",
        "objects/" V7 "-" ID "-4294967296.safetensors",
        "objects/" V7 "-" ID "-.safetensors",
        "objects/" V7 "-" ID "-base-0003.safetensors",
        "objects/" V7 "-" ID "-fold-anchor-0003.safetensors",
        "objects/" V7 "-0123456789ABCDEF0123456789abcdef-0003.safetensors",
        "objects/" V7 "-0123456789abcdef-0003.safetensors",
        "objects/" V7 "-0123456789abcdef",
        "objects/../" V7 "-" ID "-0003.safetensors",
        "objects/7-" ID "-0003.safetensors",
        "receipts/0000000012-00065.jso",
        "receipts/0000000012.json",
        "receipts/12-65.json",
        "receipts/" V7 "-0000000012-000003-00065.json",
    };
    uint64_t version, from;
    bool of_way;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (dw_key_is_commit(keys[i], &version) || dw_key_is_epoch(keys[i], &version) ||
            dw_key_is_shortcut(keys[i], &version, &from) ||
            dw_key_is_receipt(keys[i], &version) ||
            dw_key_is_object(keys[i], &version, &of_way))
            fail_msg("'%s' was taken", keys[i]);
}

TEST(test_follower_ids)
{
    static const char *const bad[] = {"", ".", ".a", "a/b", "a b", "\xc3\xa9", "a\n"};
    char id[66];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dw_follower_id_valid(bad[i]));
    memset(id, 'x', sizeof id);
    id[65] = '\0';
    assert_false(dw_follower_id_valid(id));
    id[64] = '\0';
    assert_true(dw_follower_id_valid(id));
    assert_true(dw_follower_id_valid("-_.Az09"));
}

RUN_TESTS(NULL, NULL)
