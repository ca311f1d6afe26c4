/* Engines that prepare a patch while they serve: their files, and who waits for them. */
#include "engine/ready.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "unit/temp_dir.h"

#define LIMIT_MS 50

static char own[160], patch[192], file[192];

static int make(void **state)
{
    temp_dir_make(state);
    snprintf(own, sizeof own, "%s/.deltawire", temp_dir);
    snprintf(patch, sizeof patch, "%s/patch", own);
    snprintf(file, sizeof file, "%s/engine-1-ab", own);
    assert_int_equal(mkdir(own, 0777), 0);
    put_text(patch, "a patch");
    return 0;
}

/* The engine's file, open and locked. */
static int begin_engine(const char *text)
{
    put_text(file, text);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    return fd;
}

static void say_prepared(char *out, size_t n_out)
{
    struct stat st;
    assert_int_equal(stat(patch, &st), 0);
    snprintf(out, n_out, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", (uint64_t)st.st_ino,
             (uint64_t)st.st_size,
             (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec);
}

TEST_WITH(test_nobody_watches, make, temp_dir_remove)
{
    assert_true(dw_engines_ready(temp_dir, patch, LIMIT_MS));
    unlink(patch);
    assert_true(dw_engines_ready(temp_dir, patch, LIMIT_MS));
}

TEST_WITH(test_one_that_has_not_prepared_is_waited_for, make, temp_dir_remove)
{
    static const char *const others[] = {"", "1 2 3\n", "not a number"};
    for (size_t i = 0; i < 3; i++) {
        int engine = begin_engine(others[i]);
        assert_false(dw_engines_ready(temp_dir, patch, LIMIT_MS));
        close(engine);
    }
}

TEST_WITH(test_one_that_has_prepared, make, temp_dir_remove)
{
    char text[80];
    say_prepared(text, sizeof text);
    int engine = begin_engine(text);
    assert_true(dw_engines_ready(temp_dir, patch, LIMIT_MS));
    assert_int_equal(access(file, F_OK), 0);
    close(engine);
}

TEST_WITH(test_one_that_has_ended_is_not_waited_for, make, temp_dir_remove)
{
    close(begin_engine(""));
    assert_true(dw_engines_ready(temp_dir, patch, LIMIT_MS));
    assert_int_equal(access(file, F_OK), -1);
}

RUN_TESTS(NULL, NULL)
