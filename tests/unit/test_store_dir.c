/* Tests specific to directory stores; see also tests/store/conformance.c and
 * tests/fault/test_store_crash.c. */
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "failing_allocator.h"
#include "store_text.h"
#include "temp_dir.h"

static dw_store *open_store(const char *url)
{
    dw_store *store;
    dw_status status = dw_store_open(&store, url, NULL, &err);
    if (status != DW_OK)
        print_error("%s: %s\n", err.where, err.text);
    assert_int_equal(status, DW_OK);
    return store;
}

static void assert_listed(dw_store *store, const char *wanted)
{
    char all[1000] = "";
    assert_int_equal(dw_store_list(store, "", NULL, append, all, &err), DW_OK);
    assert_string_equal(all, wanted);
}

static void run_shell(const char *format, const char *dir)
{
    char command[1000];
    snprintf(command, sizeof command, "cd '%s' && %s", dir, format);
    assert_int_equal(system(command), 0);
}

/* ---- where ---------------------------------------------------------------------------
 */

TEST(test_urls)
{
    char url[300], wanted[300], text[100];
    snprintf(url, sizeof url, "file://%s/with%%20space%%25/", temp_dir);
    snprintf(wanted, sizeof wanted, "file://%s/with%%20space%%25", temp_dir);
    dw_store *store = open_store(url);
    assert_string_equal(dw_store_url(store), wanted);
    assert_listed(store, ""); /* it does not exist yet: empty */
    assert_int_equal(get(store, "k", text), DW_NOT_FOUND);
    assert_int_equal(dw_store_remove(store, "k", &err), DW_OK);
    assert_int_equal(access(temp_path("with space%"), F_OK),
                     -1); /* readers create nothing */
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    assert_int_equal(access(temp_path("with space%/k"), F_OK), 0);
    dw_store_close(store);
    store = open_store(temp_path("with space%///"));
    assert_string_equal(dw_store_url(store), wanted);
    assert_int_equal(get(store, "k", text), DW_OK);
    dw_store_close(store);
    snprintf(url, sizeof url, "file://localhost%s/with%%20space%%25", temp_dir);
    store = open_store(url);
    assert_string_equal(dw_store_url(store), wanted);
    dw_store_close(store);
    static const char *const refused[] = {
        "file:a",      "file:./a",    "file:",       "file://a/b",
        "file:///%",   "file:///%2",  "file:///%zz", "file:///a%00b",
        "file:///a?b", "file:///a#b", "file:////a"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_int_equal(dw_store_open(&store, refused[i], NULL, &err), DW_INVALID);
    assert_int_equal(dw_store_open(&store, "file:a", NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "absolute"));
    put_text(temp_path("file"), "x");
    assert_int_equal(dw_store_open(&store, temp_path("file"), NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "not a directory"));
}

/* A relative path refers to the current directory at open. */
TEST(test_relative)
{
    char before[PATH_MAX], text[100];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(temp_dir), 0);
    dw_store *store = open_store("relative/dir");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    assert_int_equal(access(temp_path("relative/dir/k"), F_OK), 0);
    assert_int_equal(get(store, "k", text), DW_OK);
    dw_store_close(store);
    assert_int_equal(chdir(temp_dir), 0);
    store = open_store("./odd:name");
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    dw_store_close(store);
    assert_int_equal(access("odd:name/k", F_OK), 0);
    assert_int_equal(chdir(before), 0);
}

/* A directory that is removed while the store is open is made again. */
TEST(test_removed_meanwhile)
{
    dw_store *store = open_store(temp_path("vanishes/here"));
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    run_shell("rm -rf vanishes", temp_dir);
    assert_listed(store, "");
    assert_int_equal(put(store, "a/k", "1", DW_PUT_CREATE), DW_OK);
    assert_listed(store, "a/k ");
    dw_store_close(store);
}

/* ---- foreign files
 * ----------------------------------------------------------- */

TEST(test_links_are_not_followed)
{
    char text[100];
    run_shell("mkdir -p outside/dir links/real && echo secret >outside/dir/k && "
              "echo secret >outside/k && ln -s ../outside/k links/k && "
              "ln -s ../outside/dir links/dir && ln -s real links/inside && "
              "echo fine >links/real/k && ln -s k links/real/self",
              temp_dir);
    dw_store *store = open_store(temp_path("links"));
    assert_int_equal(get(store, "k", text), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_int_equal(get(store, "dir/k", text), DW_NOT_FOUND);
    assert_int_equal(get(store, "inside/k", text), DW_NOT_FOUND);
    assert_int_equal(get(store, "real/self", text), DW_UNSUPPORTED);
    assert_int_equal(get(store, "real/k", text), DW_OK);
    assert_int_equal(dw_store_stat(store, "dir/k", NULL, NULL, &err), DW_NOT_FOUND);
    assert_listed(store, "real/k ");
    assert_int_equal(put(store, "dir/new", "1", DW_PUT_REPLACE), DW_UNSUPPORTED);
    assert_int_equal(access(temp_path("outside/dir/new"), F_OK), -1);
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_UNSUPPORTED);
    assert_int_equal(put(store, "k", "mine", DW_PUT_REPLACE), DW_OK); /* of the link */
    assert_int_equal(get(store, "k", text), DW_OK);
    assert_string_equal(text, "mine");
    assert_int_equal(dw_store_remove(store, "dir/k", &err), DW_OK); /* no such object */
    assert_int_equal(access(temp_path("outside/dir/k"), F_OK), 0);
    run_shell("grep -q secret outside/k && rm links/.deltawire~/* -f && "
              "rmdir links/.deltawire~ && ln -s ../outside links/.deltawire~",
              temp_dir);
    assert_int_equal(put(store, "new", "1", DW_PUT_CREATE), DW_IO);
    assert_int_equal(count_files(temp_path("outside")), 2);
    dw_store_close(store);
    /* but the store's own path may contain one */
    run_shell("ln -s links/real to_store", temp_dir);
    store = open_store(temp_path("to_store"));
    assert_int_equal(get(store, "k", text), DW_OK);
    dw_store_close(store);
}

TEST(test_odd_files)
{
    char text[100];
    run_shell("mkdir -p odd/.deltawire~ 'odd/no key' odd/empty odd/deep/er && "
              "mkfifo odd/fifo && echo 1 >'odd/no key/a' && echo 1 >'odd/b~' && "
              "echo 1 >odd/.deltawire~/x && echo 1 >odd/deep/er/k && echo 1 >odd/.hidden",
              temp_dir);
    dw_store *store = open_store(temp_path("odd"));
    assert_listed(store, ".hidden deep/er/k ");
    assert_int_equal(get(store, "fifo", text), DW_UNSUPPORTED);
    assert_int_equal(put(store, "fifo", "1", DW_PUT_CREATE), DW_UNSUPPORTED);
    assert_int_equal(get(store, "deep", text), DW_NOT_FOUND);
    assert_int_equal(dw_store_remove(store, "deep", &err), DW_OK);
    assert_int_equal(get(store, "deep/er/k", text), DW_OK);
    dw_store_close(store);
}

/* Other stores can hold both K and K/X; a directory refuses it. */
TEST(test_key_below_a_key)
{
    char text[100];
    dw_store *store = open_store(temp_path("nested"));
    assert_int_equal(put(store, "a/b", "1", DW_PUT_CREATE), DW_OK);
    for (dw_put_mode mode = DW_PUT_REPLACE; mode <= DW_PUT_CREATE; mode++) {
        assert_int_equal(put(store, "a", "1", mode), DW_UNSUPPORTED);
        assert_non_null(strstr(err.text, "cannot hold both"));
        assert_int_equal(put(store, "a/b/c", "1", mode), DW_UNSUPPORTED);
        assert_non_null(strstr(err.text, "cannot hold both"));
    }
    assert_int_equal(get(store, "a/b/c", text), DW_NOT_FOUND);
    assert_int_equal(dw_store_remove(store, "a/b/c", &err), DW_OK);
    assert_listed(store, "a/b ");
    assert_int_equal(count_files(temp_path("nested/.deltawire~")), 0);
    dw_store_close(store);
}

TEST(test_long_names)
{
    char key[513], text[100];
    dw_store *store = open_store(temp_path("long"));
    for (int last = 0; last < 2; last++) {
        memset(key, 'n', 300);
        strcpy(key + 256, last ? "" : "/k"); /* a name has at most 255 bytes */
        assert_true(dw_store_key_valid(key));
        assert_int_equal(put(store, key, "1", DW_PUT_CREATE), DW_UNSUPPORTED);
        assert_non_null(strstr(err.text, "longer than a file name"));
        assert_int_equal(get(store, key, text), DW_NOT_FOUND);
        assert_int_equal(dw_store_remove(store, key, &err), DW_OK);
    }
    /* the deepest possible key */
    for (int i = 0; i < 512; i++)
        key[i] = i % 2 ? '/' : 'd';
    key[511] = '\0';
    assert_int_equal(put(store, key, "1", DW_PUT_CREATE), DW_OK);
    assert_int_equal(get(store, key, text), DW_OK);
    char all[1000] = "";
    assert_int_equal(dw_store_list(store, "", NULL, append, all, &err), DW_OK);
    assert_memory_equal(all, key, 511);
    /* a deeper directory does no harm */
    run_shell("cd long && cd $(dirname $(find . -name d -type f)) && rm d && "
              "mkdir -p d/d/d/d/d && echo 1 >d/d/d/d/d/k",
              temp_dir);
    assert_listed(store, "");
    dw_store_close(store);
}

TEST(test_no_permission)
{
    char text[100];
    if (geteuid() == 0) {
        /* root may do everything, so this runs as another user */
        pid_t child = fork();
        if (child == 0) {
            dw_store *store;
            run_shell("mkdir -p closed/dir && echo 1 >closed/k && chmod 600 closed/k && "
                      "chmod 755 . closed && chmod 700 closed/dir",
                      temp_dir);
            if (setgid(65534) != 0 || setuid(65534) != 0)
                _exit(1);
            char all[100] = "";
            bool good = dw_store_open(&store, temp_path("closed"), NULL, &err) == DW_OK &&
                        get(store, "k", text) == DW_DENIED && err.code == DW_DENIED &&
                        get(store, "dir/k", text) == DW_DENIED &&
                        put(store, "new", "1", DW_PUT_CREATE) == DW_DENIED &&
                        dw_store_remove(store, "k", &err) == DW_DENIED &&
                        dw_store_list(store, "", NULL, append, all, &err) == DW_DENIED &&
                        strstr(err.text, "Permission denied");
            dw_store_close(store);
            _exit(!good);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
    }
    run_shell("mkdir -p closed && chmod 500 closed", temp_dir);
    dw_store *store = open_store(temp_path("closed"));
    assert_int_equal(put(store, "new", "1", DW_PUT_CREATE), DW_DENIED);
    dw_store_close(store);
}

/* ---- drafts of others
 * -------------------------------------------------------------------- */

static const char *boot_id(void)
{
    static char id[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    assert_non_null(f);
    assert_int_equal(fread(id, 1, 36, f), 36);
    fclose(f);
    return id;
}

TEST(test_leftovers)
{
    run_shell("mkdir -p left/.deltawire~ left/.deltawire~/dir", temp_dir);
    static const struct {
        const char *name;
        bool same_boot, is_old, is_locked, goes;
    } drafts[] = {
        {"dead", true, false, false, true},          {"alive", true, false, true, false},
        {"elsewhere", false, false, false, false}, /* or from before a reboot */
        {"elsewhere-old", false, true, false, true}, {"old", true, true, false, true},
    };
    char paths[5][300];
    int fds[5];
    for (size_t i = 0; i < 5; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/left/.deltawire~/%s-%s", temp_dir,
                 drafts[i].same_boot ? boot_id() : "00000000-0000", drafts[i].name);
        put_text(paths[i], "half an obj");
        fds[i] = open(paths[i], O_RDWR);
        assert_true(fds[i] >= 0);
        if (drafts[i].is_locked)
            assert_int_equal(flock(fds[i], LOCK_EX), 0);
        if (drafts[i].is_old) {
            struct timeval times[2];
            gettimeofday(&times[0], NULL);
            times[0].tv_sec -= 25 * 60 * 60;
            times[1] = times[0];
            assert_int_equal(futimes(fds[i], times), 0);
        }
    }
    dw_store *store = open_store(temp_path("left"));
    assert_listed(store, "");
    assert_int_equal(count_files(temp_path("left/.deltawire~")),
                     6); /* readers remove no drafts */
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(access(paths[i], F_OK), drafts[i].goes ? -1 : 0);
        close(fds[i]);
    }
    assert_listed(store, "k ");
    dw_store_close(store);
}

/* ---- memory
 * ---------------------------------------------------------------------------- */

static size_t largest_block;

static void *note_allocate(void *context, size_t n_bytes)
{
    (void)context;
    largest_block = n_bytes > largest_block ? n_bytes : largest_block;
    return malloc(n_bytes);
}

static void *note_reallocate(void *context, void *pointer, size_t n_bytes)
{
    (void)context;
    largest_block = n_bytes > largest_block ? n_bytes : largest_block;
    return realloc(pointer, n_bytes);
}

static void note_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

static dw_status read_zeros(void *context, uint64_t offset, void *into, size_t n_bytes,
                            dw_error *error)
{
    (void)context, (void)offset, (void)error;
    memset(into, 0, n_bytes);
    return DW_OK;
}

TEST(test_large_source_takes_little_memory)
{
    dw_source source = {.n_bytes = 64 << 20, .read = read_zeros};
    dw_set_allocator(&(dw_allocator){note_allocate, note_reallocate, note_release, NULL});
    dw_store *store = open_store(temp_path("large"));
    assert_int_equal(dw_store_put(store, "k", &source, DW_PUT_CREATE, NULL, &err), DW_OK);
    dw_store_close(store);
    dw_set_allocator(NULL);
    assert_true(largest_block <= 1 << 20);
    run_shell("test $(stat -c %s large/k) = 67108864 && rm -r large", temp_dir);
}

static dw_status use_memory(dw_error *error)
{
    static const char *const keys[] = {"a/b", "c", "a/d"};
    dw_store *store;
    dw_source source = {.n_bytes = 100, .read = read_zeros};
    char all[100] = "";
    dw_status status = dw_store_open(&store, temp_path("memory"), NULL, error);
    for (size_t i = 0; status == DW_OK && i < 3; i++)
        status = dw_store_put(store, keys[i], &source, DW_PUT_REPLACE, NULL, error);
    if (status == DW_OK)
        status = dw_store_list(store, "", NULL, append, all, error);
    if (status == DW_OK)
        assert_string_equal(all, "a/b a/d c ");
    dw_store_close(store);
    return status;
}

static void no_draft_is_left(void)
{
    assert_int_equal(count_files(temp_path("memory/.deltawire~")), 0);
}

TEST(test_out_of_memory)
{
    fail_every_allocation(use_memory, no_draft_is_left);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
