/* The test's own directory, and small files in it. */
#ifndef DW_TEST_TEMP_DIR_H
#define DW_TEST_TEMP_DIR_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char temp_dir[64];

/* In TMPDIR, unless its name is too long for the tests' buffers. */
static int temp_dir_make(void **state)
{
    (void)state;
    const char *root = getenv("TMPDIR");
    snprintf(temp_dir, sizeof temp_dir, "%s/deltawire-test-XXXXXX",
             root && *root && strlen(root) < 40 ? root : "/tmp");
    return mkdtemp(temp_dir) ? 0 : -1;
}

/* TEMP_DIR/NAME, valid until the fourth next call. */
static inline const char *temp_path(const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir, name);
    return path;
}

static inline size_t count_entries(const char *path, bool *has_own)
{
    size_t n = 0;
    DIR *dir = opendir(path);
    *has_own = false;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const bool is_own = strcmp(e->d_name, ".deltawire") == 0;
        *has_own = *has_own || is_own;
        n += !is_own && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    if (dir)
        closedir(dir);
    return n;
}

/* With those in DIR/.deltawire, which does not count itself. */
static inline size_t count_files(const char *dir)
{
    char own[600];
    bool has_own, nested;
    const size_t n = count_entries(dir, &has_own);
    snprintf(own, sizeof own, "%.580s/.deltawire", dir);
    return n + (has_own ? count_entries(own, &nested) : 0);
}

static inline void put_file(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

/* The whole file with a NUL after its end; the caller frees it. */
static inline uint8_t *get_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n_bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = calloc(*n_bytes + 1, 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, f), *n_bytes);
    fclose(f);
    return bytes;
}

static int temp_dir_remove(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_dir);
    return system(command);
}

#endif
