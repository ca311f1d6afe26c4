/* Companion files in a directory: installed, replaced and removed if they are ours, and
 * left as they are if they are the user's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "codec/seal.h"
#include "unit/companion_kit.h"

static dw_companion_dir *d;
static dw_companion_counts counts;
static dw_error err;

static int make(void **state)
{
    if (temp_dir_make(state) != 0)
        return -1;
    counts = (dw_companion_counts){0};
    err = (dw_error){0};
    return dw_companion_dir_open(&d, temp_dir, &err) == DW_OK ? 0 : -1;
}

static int end(void **state)
{
    dw_companion_dir_close(d);
    return temp_dir_remove(state);
}

#define FILES(...) ((const companion_text[]){__VA_ARGS__, {NULL, NULL}})
#define NONE       ((const companion_text[]){{NULL, NULL}})

static void install(const companion_text *texts, uint64_t n_installed, uint64_t n_removed)
{
    const dw_companion_counts before = counts;
    dw_status status = companion_go(d, texts, &counts, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, DW_OK);
    assert_int_equal(counts.n_installed - before.n_installed, n_installed);
    assert_int_equal(counts.n_removed - before.n_removed, n_removed);
}

static void reopen(void)
{
    dw_companion_dir_close(d);
    assert_int_equal(dw_companion_dir_open(&d, temp_dir, &err), DW_OK);
}

#define IS(name, text) assert_true(companion_is(temp_dir, name, text))

static void test_install_replace_remove(void **state)
{
    (void)state;
    install(FILES({"config.json", "one"}, {"empty", ""}, {"vocab.txt", "words"}), 3, 0);
    IS("config.json", "one");
    IS("empty", "");
    IS("vocab.txt", "words");
    assert_int_equal(count_files(temp_dir), 4); /* and the list */
    install(FILES({"config.json", "one"}, {"empty", ""}, {"vocab.txt", "words"}), 0, 0);
    reopen();
    install(FILES({"config.json", "two"}, {"merges.txt", "m"}), 2, 2);
    IS("config.json", "two");
    IS("empty", NULL);
    IS("vocab.txt", NULL);
    reopen();
    install(NONE, 0, 2);
    assert_int_equal(count_files(temp_dir), 0); /* no list of nothing */
}

static void test_removed_by_the_user_comes_back(void **state)
{
    (void)state;
    install(FILES({"a", "1"}, {"b", "2"}), 2, 0);
    assert_int_equal(unlink(temp_path("a")), 0);
    install(FILES({"a", "1"}, {"b", "2"}), 1, 0);
    IS("a", "1");
}

static void test_users_files_stay(void **state)
{
    (void)state;
    put_text(temp_path("config.json"), "mine");
    put_text(temp_path("notes.txt"), "mine");
    put_text(temp_path("vocab.txt"), "words");
    install(FILES({"config.json", "theirs"}, {"vocab.txt", "words"}), 0, 0);
    assert_true(dw_companion_kept(d, 0));
    assert_false(dw_companion_kept(d, 1)); /* the same bytes: nothing to do */
    IS("config.json", "mine");
    /* it has the bytes of a version, and stays the user's: it is neither replaced ... */
    install(FILES({"vocab.txt", "other"}), 0, 0);
    assert_true(dw_companion_kept(d, 0));
    /* ... nor removed */
    install(NONE, 0, 0);
    IS("config.json", "mine");
    IS("notes.txt", "mine");
    IS("vocab.txt", "words");
    assert_int_equal(unlink(temp_path("config.json")), 0);
    install(FILES({"config.json", "theirs"}), 1, 0);
    IS("config.json", "theirs");
}

static void test_edited_files_become_the_users(void **state)
{
    (void)state;
    install(FILES({"a", "aaaa"}, {"b", "bbbb"}), 2, 0);
    put_text(temp_path("a"), "edit"); /* the same size */
    put_text(temp_path("b"), "edited");
    install(FILES({"a", "AAAA"}, {"b", "bbbb"}), 0, 0);
    assert_true(dw_companion_kept(d, 0) && dw_companion_kept(d, 1));
    IS("a", "edit");
    IS("b", "edited");
    install(NONE, 0, 0);
    IS("a", "edit");
    IS("b", "edited");
}

/* The times of a file show an edit even if the size does not change. */
static void test_edit_after_a_look(void **state)
{
    (void)state;
    install(FILES({"a", "aaaa"}), 1, 0);
    sleep(3); /* now the hash of the file is remembered */
    install(FILES({"a", "aaaa"}), 0, 0);
    install(FILES({"a", "aaaa"}), 0, 0);
    put_text(temp_path("a"), "edit");
    install(FILES({"a", "AAAA"}), 0, 0);
    assert_true(dw_companion_kept(d, 0));
    IS("a", "edit");
}

static void test_links_and_directories_stay(void **state)
{
    (void)state;
    put_text(temp_path("target"), "theirs");
    assert_int_equal(symlink("target", temp_path("a")), 0);
    assert_int_equal(symlink("nowhere", temp_path("b")), 0);
    assert_int_equal(mkdir(temp_path("c"), 0777), 0);
    assert_int_equal(mkfifo(temp_path("d"), 0666), 0);
    install(FILES({"a", "theirs"}, {"b", "b"}, {"c", "c"}, {"d", ""}), 0, 0);
    for (size_t i = 0; i < 4; i++)
        assert_true(dw_companion_kept(d, i));
    struct stat st;
    assert_int_equal(lstat(temp_path("a"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(access(temp_path("nowhere"), F_OK), -1);
    IS("target", "theirs");
    /* ours, which the user replaced with a link to the same bytes */
    install(FILES({"e", "theirs"}), 1, 0);
    assert_int_equal(unlink(temp_path("e")), 0);
    assert_int_equal(symlink("target", temp_path("e")), 0);
    install(FILES({"e", "other"}), 0, 0);
    install(NONE, 0, 0);
    assert_int_equal(lstat(temp_path("e"), &st), 0);
    IS("target", "theirs");
}

/* The file may have another name; that one keeps its bytes. */
static void test_hard_links(void **state)
{
    (void)state;
    install(FILES({"a", "1"}), 1, 0);
    assert_int_equal(link(temp_path("a"), temp_path("mine")), 0);
    install(FILES({"a", "2"}), 1, 0);
    IS("a", "2");
    IS("mine", "1");
}

static void test_bad_names(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "..",
                                        ".",
                                        "../a",
                                        "a/b",
                                        "/etc/a",
                                        "a\\b",
                                        ".hidden",
                                        "x.safetensors",
                                        ".deltawire/state.json",
                                        "a\nb",
                                        "a\x7f",
                                        "\xff",
                                        "deltawire-x",
                                        "model.safetensors",
                                        "m.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const companion_text texts[] = {{names[i], "x"}, {NULL, NULL}};
        assert_int_equal(companion_go(d, texts, &counts, &err), DW_INVALID);
    }
    assert_int_equal(count_files(temp_dir), 0);
}

static void test_too_much(void **state)
{
    (void)state;
    dw_file_entry entry = {.name = (char *)"a", .n_bytes = (64u << 20) + 1};
    dw_file_list list = {.is_given = true, .items = &entry, .n = 1};
    assert_int_equal(dw_companion_plan(d, &list, &err), DW_INVALID);
    companion_text *many = calloc(DW_MAX_FILES + 2, sizeof *many);
    char(*names)[16] = calloc(DW_MAX_FILES + 1, sizeof *names);
    for (int i = 0; i <= DW_MAX_FILES; i++) {
        snprintf(names[i], sizeof *names, "f%04d", i);
        many[i] = (companion_text){names[i], "x"};
    }
    assert_int_equal(companion_go(d, many, &counts, &err), DW_INVALID);
    assert_int_equal(count_files(temp_dir), 0);
    free(names);
    free(many);
}

/* Without its list nothing is ours. */
static void test_damaged_list(void **state)
{
    (void)state;
    install(FILES({"a", "1"}, {"b", "2"}), 2, 0);
    size_t n_bytes;
    uint8_t *bytes = get_file(temp_path(".deltawire/files.json"), &n_bytes);
    bytes[n_bytes / 2] ^= 1;
    put_file(temp_path(".deltawire/files.json"), bytes, n_bytes);
    free(bytes);
    install(FILES({"a", "1"}, {"b", "3"}), 0, 0);
    assert_false(dw_companion_kept(d, 0));
    assert_true(dw_companion_kept(d, 1));
    IS("b", "2");
    install(NONE, 0, 0);
    IS("a", "1");
    assert_int_equal(access(temp_path(".deltawire/files.json"), F_OK), -1);
}

/* Between the plan and the install the user does something. */
static void test_changes_meanwhile(void **state)
{
    (void)state;
    install(FILES({"a", "1"}, {"drop", "1"}), 2, 0);
    const companion_text texts[] = {{"a", "2"}, {"b", "2"}, {"c", "2"}, {NULL, NULL}};
    dw_file_list list = companion_list(texts);
    assert_int_equal(dw_companion_plan(d, &list, &err), DW_OK);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(dw_companion_stage(d, i, "2", &err), DW_OK);
    IS("a", "1"); /* staging changes nothing */
    IS("drop", "1");
    put_text(temp_path("a"), "mine");
    put_text(temp_path("b"), "mine");
    put_text(temp_path("drop"), "mine");
    counts = (dw_companion_counts){0};
    assert_int_equal(dw_companion_install(d, &counts, &err), DW_OK);
    assert_int_equal(counts.n_installed, 1);
    assert_int_equal(counts.n_removed, 0);
    IS("a", "mine");
    IS("b", "mine");
    IS("c", "2");
    IS("drop", "mine");
    assert_true(dw_companion_kept(d, 0) && dw_companion_kept(d, 1));
    dw_file_list_release(&list);
    reopen();
    assert_int_equal(count_files(temp_dir), 5); /* nothing staged is left */
}

static void test_staged_files_are_dropped(void **state)
{
    (void)state;
    const companion_text texts[] = {{"a", "2"}, {NULL, NULL}};
    dw_file_list list = companion_list(texts);
    assert_int_equal(dw_companion_plan(d, &list, &err), DW_OK);
    assert_int_equal(dw_companion_stage(d, 0, "2", &err), DW_OK);
    assert_int_equal(count_files(temp_dir), 1);
    dw_file_list_release(&list);
    reopen();
    assert_int_equal(count_files(temp_dir), 0);
    put_text(temp_path(".deltawire/file-0007.tmp-1-2"), "left by a kill");
    reopen();
    assert_int_equal(count_files(temp_dir), 0);
}

static void test_unknown_list(void **state)
{
    (void)state;
    /* sealed as the library seals it, and of another format */
    dw_writer w = {0};
    dw_write_text(&w, "{\"format\":\"deltawire-files/2\",\"files\":[]");
    assert_int_equal(dw_seal_write(&w, temp_dir, ".deltawire/files.json", &err), DW_OK);
    assert_int_equal(companion_go(d, FILES({"a", "1"}), &counts, &err), DW_UNSUPPORTED);
    IS("a", NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_install_replace_remove),
        TEST(test_removed_by_the_user_comes_back),
        TEST(test_users_files_stay),
        TEST(test_edited_files_become_the_users),
        TEST(test_edit_after_a_look),
        TEST(test_links_and_directories_stay),
        TEST(test_hard_links),
        TEST(test_bad_names),
        TEST(test_too_much),
        TEST(test_damaged_list),
        TEST(test_changes_meanwhile),
        TEST(test_staged_files_are_dropped),
        TEST(test_unknown_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
