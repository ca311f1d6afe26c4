/* Which files of a directory are companion files, and that only whole ones are taken. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/stream.h"
#include "failing_allocator.h"
#include "temp_dir.h"

/* wrap: read */

static void put(const char *name, const char *text)
{
    FILE *f = fopen(temp_path(name), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* What happens to a file after the first read of it. */
static enum { NOTHING, SHRINK, GROW, VANISH, REWRITE } trouble;

ssize_t __real_read(int fd, void *into, size_t n);
ssize_t __wrap_read(int fd, void *into, size_t n);

ssize_t __wrap_read(int fd, void *into, size_t n)
{
    if (trouble == SHRINK && truncate(temp_path("d/config.json"), 1) != 0)
        abort();
    ssize_t got = __real_read(fd, into, trouble == SHRINK && n > 1 ? 1 : n);
    if (trouble == GROW)
        put("d/config.json", "more than there was before");
    if (trouble == VANISH)
        unlink(temp_path("d/config.json"));
    if (trouble == REWRITE) {
        const struct timespec times[2] = {{1, 0}, {1, 0}};
        utimensat(AT_FDCWD, temp_path("d/config.json"), times, 0);
    }
    if (trouble != SHRINK)
        trouble = NOTHING;
    return got;
}

/* The names that are taken, with commas; or the code of the error. */
static const char *load(const dw_companion_rules *rules, dw_error *err)
{
    static char names[4096];
    dw_companions *c;
    size_t n;
    *err = (dw_error){0};
    dw_status status = dw_companions_load(&c, temp_path("d"), rules, err);
    assert_int_equal(status == DW_OK, c != NULL);
    if (status != DW_OK)
        return dw_status_name(status);
    const dw_file *files = dw_companions_files(c, &n);
    names[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        strcat(names, i > 0 ? "," : "");
        strcat(names, files[i].name);
        char path[128];
        snprintf(path, sizeof path, "d/%s", files[i].name);
        struct stat s;
        assert_int_equal(stat(temp_path(path), &s), 0);
        assert_int_equal(s.st_size, files[i].n_bytes);
    }
    dw_companions_close(c);
    return names;
}

static const char *load_with(const char *with, const char *without, dw_error *err)
{
    dw_companion_rules rules;
    dw_companion_rules_init(&rules);
    rules.with = &with;
    rules.n_with = with != NULL;
    rules.without = &without;
    rules.n_without = without != NULL;
    return load(&rules, err);
}

static int make_directory(void **state)
{
    if (temp_dir_make(state) != 0 || mkdir(temp_path("d"), 0700) != 0)
        return -1;
    put("d/config.json", "{}");
    put("d/tokenizer.json", "[]");
    put("d/model.safetensors", "weights");
    put("d/model.safetensors.index.json", "index");
    put("d/trainer_state.json", "{}");
    put("d/modeling.py", "code");
    put("d/qwen.tiktoken", "");
    put("d/.hidden", "x");
    put("d/deltawire-notes", "x");
    put("d/o'dd name", "x");
    return 0;
}

TEST(test_names)
{
    dw_error err;
    assert_string_equal(load(NULL, &err), "config.json,qwen.tiktoken,tokenizer.json");
    assert_string_equal(load_with("*.py", NULL, &err),
                        "config.json,modeling.py,qwen.tiktoken,tokenizer.json");
    assert_string_equal(load_with("o'dd name", "*t*k*", &err), "config.json,o'dd name");
    assert_string_equal(load_with(NULL, "*", &err), "");
    /* a pattern takes neither weights nor hidden files nor deltawire's own */
    assert_string_equal(load_with("*", NULL, &err),
                        "config.json,modeling.py,o'dd name,qwen.tiktoken,tokenizer.json,"
                        "trainer_state.json");
    const char *with = "*.py";
    dw_companion_rules rules;
    dw_companion_rules_init(&rules);
    rules.with = &with;
    rules.n_with = 1;
    rules.no_defaults = true;
    assert_string_equal(load(&rules, &err), "modeling.py");
}

TEST(test_bad_rules)
{
    static const struct {
        const char *with;
        const char *status;
        const char *text;
    } cases[] = {
        {"../config.json", "invalid", "path"},
        {"..", "invalid", "dot"},
        {"sub/*", "invalid", "path"},
        {"/etc/passwd", "invalid", "path"},
        {"model.safetensors", "invalid", "weights"},
        {".hidden", "invalid", "dot"},
        {"deltawire-notes", "invalid", "deltawire's own"},
        {"nowhere.json", "not found", "'nowhere.json'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err;
        assert_string_equal(load_with(cases[i].with, NULL, &err), cases[i].status);
        if (!strstr(err.text, cases[i].text))
            fail_msg("%s: %s", cases[i].with, err.text);
    }
    dw_error err;
    assert_string_equal(load_with(NULL, "a/b", &err), "invalid");
    dw_companions *c;
    assert_int_equal(dw_companions_load(&c, temp_path("nowhere"), NULL, &err),
                     DW_NOT_FOUND);
    assert_null(c);
}

/* Links to files are followed. A directory is an error only if it was asked for by name.
 */
TEST(test_links_and_directories)
{
    dw_error err;
    put("elsewhere", "{\"a\": 0}");
    assert_int_equal(symlink("../elsewhere", temp_path("d/vocab.json")), 0);
    assert_int_equal(mkdir(temp_path("d/spiece.model"), 0700), 0);
    assert_int_equal(mkdir(temp_path("d/vo\ndd"), 0700), 0);
    assert_string_equal(load(NULL, &err),
                        "config.json,qwen.tiktoken,tokenizer.json,vocab.json");
    assert_string_equal(load_with("*", "[a-u]*", &err), "vocab.json");
    assert_string_equal(load_with("spiece.model", NULL, &err), "invalid");
    assert_non_null(strstr(err.text, "not a regular file"));
    unlink(temp_path("d/vocab.json"));
    rmdir(temp_path("d/spiece.model"));
    rmdir(temp_path("d/vo\ndd"));
    unlink(temp_path("elsewhere"));
}

/* Refuses d/NAME, a usual name or one that *.py matches, unless it is left out. */
static void expect_refused(const char *name, const char *status, const char *text)
{
    dw_error err;
    assert_string_equal(load_with("*.py", NULL, &err), status);
    if (!strstr(err.text, text) || !strstr(err.text, "leave it out"))
        fail_msg("%s: %s", err.where, err.text);
    assert_non_null(strstr(err.where, "/d/"));
    assert_string_equal(load_with("*.py", name, &err),
                        "config.json,modeling.py,qwen.tiktoken,tokenizer.json");
}

/* Followers would remove a file that is left out in silence. */
TEST(test_no_files)
{
    static const char *const names[] = {"vocab.txt", "more.py"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char at[600];
        snprintf(at, sizeof at, "%s/d/%s", temp_dir, names[i]);
        assert_int_equal(symlink("../nowhere", at), 0);
        expect_refused(names[i], "not found", "leads nowhere");
        unlink(at);
        assert_int_equal(symlink(names[i], at), 0); /* to itself */
        expect_refused(names[i], "not found", "leads nowhere");
        unlink(at);
        assert_int_equal(symlink("../d", at), 0);
        expect_refused(names[i], "invalid", "not a regular file");
        unlink(at);
        assert_int_equal(mkfifo(at, 0600), 0);
        expect_refused(names[i], "invalid", "not a regular file");
        unlink(at);
    }
    put("d/new\nline.py", "x");
    expect_refused("new?line.py", "invalid", "control characters");
    unlink(temp_path("d/new\nline.py"));
}

TEST(test_json)
{
    static const struct {
        const char *text, *status, *fault;
    } cases[] = {
        {"", "stale", "ends too early"},
        {" \n", "stale", "ends too early"},
        {"{\"a\": ", "stale", "ends too early"},
        {"[1}", "stale", "ends too early"},
        {"not json", "invalid", "neither with { nor with ["},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err;
        put("d/config.json", cases[i].text);
        assert_string_equal(load(NULL, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].fault));
    }
    put("d/config.json", "{}");
}

TEST(test_changes_while_reading)
{
    for (int kind = SHRINK; kind <= REWRITE; kind++) {
        dw_error err;
        put("d/config.json", "{\"a\": 1}");
        trouble = kind;
        const char *result = load(NULL, &err);
        trouble = NOTHING;
        assert_string_equal(result, "stale");
        assert_non_null(strstr(err.where, "config.json"));
        assert_non_null(strstr(err.text, "nothing was published"));
    }
    put("d/config.json", "{}");
}

TEST(test_limits)
{
    dw_error err;
    put("d/tokenizer.model", "");
    assert_int_equal(truncate(temp_path("d/tokenizer.model"), (64 << 20) - 4), 0);
    assert_string_equal(load(NULL, &err),
                        "config.json,qwen.tiktoken,tokenizer.json,tokenizer.model");
    assert_int_equal(truncate(temp_path("d/tokenizer.model"), (64 << 20) - 2), 0);
    assert_string_equal(load(NULL, &err), "invalid");
    assert_non_null(strstr(err.where, "tokenizer.model"));
    assert_non_null(strstr(err.text, "67108864"));
    unlink(temp_path("d/tokenizer.model"));
    for (int i = 0; i < 10000; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/f%d.py", i);
        put(name, "");
    }
    assert_string_equal(load_with("*.py", NULL, &err), "invalid");
    assert_non_null(strstr(err.text, "more than 1024"));
    for (int i = 0; i < 10000; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/f%d.py", i);
        unlink(temp_path(name));
    }
}

static dw_status load_once(dw_error *err)
{
    dw_companions *c;
    dw_status status = dw_companions_load(&c, temp_path("d"), NULL, err);
    dw_companions_close(c);
    return status;
}

TEST(test_no_memory)
{
    fail_every_allocation(load_once, NULL);
}

RUN_TESTS(make_directory, temp_dir_remove)
