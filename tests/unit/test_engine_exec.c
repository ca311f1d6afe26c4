/* Commands as an engine: their environment, exit codes and time limits. */
#include "unit/suite.h"

#include <signal.h>
#include <unistd.h>

#include "deltawire/deltawire.h"
#include "engine/engine_int.h"
#include "unit/failing_allocator.h"
#include "unit/temp_dir.h"

static const dw_engine_update a_patch = {
    .stream = "a1",
    .from = 6,
    .version = 7,
    .state = 0xabcdef,
    .dir = "/models/a b",
    .patch = "/models/a b/patch",
};

static dw_engine *open_exec(const char *pause, const char *apply, const char *resume,
                            unsigned limit_ms)
{
    dw_engine_options options = {.pause_ms = limit_ms,
                                 .apply_ms = limit_ms,
                                 .shell_pause = pause,
                                 .shell_apply = apply,
                                 .shell_resume = resume};
    dw_engine *engine = NULL;
    dw_error err = {0};
    assert_int_equal(dw_engine_open(&engine, "exec", &options, &err), DW_OK);
    return engine;
}

static void read_file(char *out, size_t n_room, const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, n_room - 1, file)] = '\0';
    fclose(file);
}

TEST(test_environment)
{
    char text[1024];
    setenv("DELTAWIRE_VERSION", "inherited", 1);
    setenv("DELTAWIRE_PATCH", "inherited", 1);
    setenv("OUT_DIR", temp_dir, 1);
    static const char show[] =
        "echo \"$DELTAWIRE_VERSION|$DELTAWIRE_FROM|$DELTAWIRE_DIR|$DELTAWIRE_PATCH|"
        "$DELTAWIRE_STATE|$DELTAWIRE_STREAM\" >\"$OUT_DIR/out\"";
    dw_engine *engine = open_exec(show, show, show, 60000);
    assert_string_equal(engine->driver->name, "exec");
    assert_null(engine->where);
    assert_false(engine->driver->probe);
    const char *path = temp_path("out");
    dw_error err = {0};
    bool whole = false;
    static const char all[] = "7|6|/models/a b|/models/a b/patch|0000000000abcdef|a1\n";
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    read_file(text, sizeof text, path);
    assert_string_equal(text, all);
    unlink(path);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
    assert_true(whole);
    read_file(text, sizeof text, path);
    assert_string_equal(text, all);
    dw_engine_update snapshot = a_patch;
    snapshot.patch = NULL;
    assert_int_equal(dw_engine_resume(engine, &snapshot, &err), DW_OK);
    read_file(text, sizeof text, path);
    assert_string_equal(text, "7||/models/a b||0000000000abcdef|a1\n");
    assert_int_equal(dw_engine_resume(engine, NULL, &err), DW_OK);
    read_file(text, sizeof text, path);
    assert_string_equal(text, "|||||\n");
    dw_engine_close(engine);
    unsetenv("DELTAWIRE_VERSION");
    unsetenv("DELTAWIRE_PATCH");
}

TEST(test_exit_codes)
{
    static const struct {
        const char *command;
        dw_status code;
        bool whole;
        const char *words;
    } ends[] = {
        {"true", DW_OK, true, ""},
        {"echo noise >&2; exit 0", DW_OK, true, ""},
        {"exit 75", DW_CONFLICT, true, "failed with exit code 75"},
        {"exit 3", DW_CONFLICT, false, "failed with exit code 3"},
        {"echo one >&2; printf 'two\\nthr\\033ee\\n\\n' >&2; exit 4", DW_CONFLICT, false,
         "exit code 4: thr\\x1bee"},
        {"printf 'no line end' >&2; exit 5", DW_CONFLICT, false, "5: no line end"},
        {"kill -9 $$", DW_CONFLICT, false, "ended by signal 9"},
        {"no-such-command-here", DW_CONFLICT, false, "exit code 127: "},
        /* a long line is cut, and much output does not block */
        {"head -c 300000 /dev/zero | tr '\\0' x >&2; exit 6", DW_CONFLICT, false,
         "exit code 6: xxxxx"},
        {"exec 2>&-; exit 7", DW_CONFLICT, false, "exit code 7"},
        {"read line && exit 8; exit 9", DW_CONFLICT, false, "exit code 9"},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        dw_engine *engine = open_exec(NULL, ends[i].command, NULL, 60000);
        dw_error err = {0};
        bool whole = !ends[i].whole;
        assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), ends[i].code);
        assert_int_equal(whole, ends[i].whole);
        assert_non_null(strstr(err.text, ends[i].words));
        if (ends[i].code != DW_OK)
            assert_string_equal(err.where, ends[i].command);
        /* there are no other commands: nothing to do */
        assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
        assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
        dw_engine_close(engine);
    }
}

/* Whether the process whose id is in the file PATH runs. A zombie does not. */
static bool lives(const char *path)
{
    char text[256], stat_path[64];
    read_file(text, sizeof text, path);
    long pid = strtol(text, NULL, 10);
    assert_true(pid > 1);
    snprintf(stat_path, sizeof stat_path, "/proc/%ld/stat", pid);
    if (access(stat_path, F_OK) != 0)
        return false;
    read_file(text, sizeof text, stat_path);
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[2] != 'Z';
}

/* At its limit a command gets SIGTERM with all its processes, then SIGKILL. */
TEST(test_limit)
{
    setenv("OUT_DIR", temp_dir, 1);
    const char *path = temp_path("pid");
    static const char *const commands[] = {
        "sleep 600 & echo $! >$OUT_DIR/pid; wait",
        "trap '' TERM; (trap '' TERM; sleep 600) & echo $! >$OUT_DIR/pid; echo last "
        "words >&2; while :; do wait; sleep 1; done",
    };
    unsigned limit_ms = 1000;
    for (size_t i = 0; i < 2;) {
        dw_engine *engine = open_exec(commands[i], commands[i], NULL, limit_ms);
        dw_error err = {0};
        bool whole = true;
        char words[64];
        snprintf(words, sizeof words, "longer than %u ms", limit_ms);
        unlink(path);
        assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_UNAVAILABLE);
        assert_false(whole);
        assert_non_null(strstr(err.text, words));
        assert_false(dw_engine_is_gone(engine));
        dw_engine_close(engine);
        /* on a busy machine it may have been killed before that */
        if (access(path, F_OK) != 0 || (i == 1 && !strstr(err.text, "last words"))) {
            assert_true(limit_ms < 200000);
            limit_ms *= 2;
            continue;
        }
        while (lives(path))
            usleep(1000);
        i++;
    }
}

/* Background processes of a command are neither waited for nor killed. */
TEST(test_background)
{
    setenv("OUT_DIR", temp_dir, 1);
    const char *path = temp_path("pid");
    dw_engine *engine = open_exec(NULL, NULL, "sleep 600 & echo $! >$OUT_DIR/pid", 60000);
    dw_error err = {0};
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    assert_true(lives(path));
    char text[32];
    read_file(text, sizeof text, path);
    kill((pid_t)strtol(text, NULL, 10), SIGKILL);
    dw_engine_close(engine);
}

TEST(test_lost_child)
{
    signal(SIGCHLD, SIG_IGN);
    dw_engine *engine = open_exec(NULL, "exit 75", NULL, 60000);
    dw_error err = {0};
    bool whole = true;
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_IO);
    assert_false(whole);
    assert_non_null(strstr(err.text, "SIGCHLD"));
    signal(SIGCHLD, SIG_DFL);
    dw_engine_close(engine);
}

TEST(test_no_commands)
{
    dw_engine *engine;
    dw_error err = {0};
    assert_int_equal(dw_engine_open(&engine, "exec", NULL, &err), DW_INVALID);
    assert_null(engine);
}

static dw_status run_all(dw_error *err)
{
    dw_engine_options options = {
        .shell_pause = "true", .shell_apply = "true", .shell_resume = "true"};
    dw_engine *engine = NULL;
    dw_status status = dw_engine_open(&engine, "exec", &options, err);
    bool whole = true;
    if (status == DW_OK)
        status = dw_engine_pause(engine, &a_patch, err);
    if (status == DW_OK)
        status = dw_engine_apply(engine, &a_patch, &whole, err);
    assert_true(whole);
    dw_engine_close(engine);
    return status;
}

TEST(test_allocations)
{
    fail_every_allocation(run_all, NULL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
