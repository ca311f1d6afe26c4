/* A disk that forgets what was not synced. The wrapped system calls act on a real
 * directory and note what is durable: the bytes of a file as of its last fsync, the names
 * in a directory as of its last fsync. lossy_cut() then writes out what a loss of power
 * would leave. The notes are in shared memory, so that they survive a killed process. */
#ifndef DW_TEST_LOSSY_DISK_H
#define DW_TEST_LOSSY_DISK_H

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOSSY_NODES   400
#define LOSSY_BYTES   8192
#define LOSSY_ENTRIES 12
#define LOSSY_NAME    96

/* A file or directory. Inode numbers are reused, so a new file gets a new node. */
typedef struct lossy_node {
    ino_t inode;
    bool is_dir, synced;
    size_t n_bytes;
    uint8_t bytes[LOSSY_BYTES];
    size_t n_entries;
    struct lossy_entry {
        char name[LOSSY_NAME];
        int node;
    } entries[LOSSY_ENTRIES];
} lossy_node;

typedef struct lossy_disk {
    int n_nodes;
    lossy_node nodes[LOSSY_NODES];
} lossy_disk;

static lossy_disk *lossy;

enum { LOSSY_NONE = -1 };
typedef enum lossy_mode {
    LOSE_NAMES, /* all names that were not synced are lost */
    KEEP_NAMES, /* only the bytes that were not synced are lost */
    LOSE_SOME,  /* each is lost or not at random */
} lossy_mode;

/* The node of an inode that was made since lossy_reset, or is its directory. */
static int lossy_find(ino_t inode)
{
    for (int i = lossy->n_nodes - 1; i >= 0; i--)
        if (lossy->nodes[i].inode == inode)
            return i;
    return LOSSY_NONE;
}

static void lossy_made(const struct stat *st)
{
    assert_true(lossy->n_nodes < LOSSY_NODES);
    lossy->nodes[lossy->n_nodes++] =
        (lossy_node){.inode = st->st_ino, .is_dir = S_ISDIR(st->st_mode)};
}

static size_t lossy_read_names(int fd, struct lossy_entry out[LOSSY_ENTRIES])
{
    size_t n = 0;
    DIR *stream = fdopendir(fd);
    assert_non_null(stream);
    for (struct dirent *e; (e = readdir(stream));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        assert_true(n < LOSSY_ENTRIES && strlen(e->d_name) < LOSSY_NAME);
        assert_int_equal(fstatat(dirfd(stream), e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
        strcpy(out[n].name, e->d_name);
        out[n].node = lossy_find(st.st_ino);
        assert_int_not_equal(out[n++].node, LOSSY_NONE);
    }
    closedir(stream);
    return n;
}

int __real_openat(int dir, const char *path, int flags, ...);
int __real_open(const char *path, int flags, ...);

static void lossy_synced(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    int found = lossy_find(st.st_ino);
    if (found == LOSSY_NONE)
        return; /* above the current directory */
    lossy_node *node = &lossy->nodes[found];
    node->synced = true;
    if (node->is_dir) {
        int again = __real_openat(fd, ".", O_RDONLY | O_DIRECTORY);
        node->n_entries = lossy_read_names(again, node->entries);
    } else {
        assert_true(st.st_size <= LOSSY_BYTES);
        node->n_bytes = (size_t)st.st_size;
        assert_int_equal(pread(fd, node->bytes, LOSSY_BYTES, 0), st.st_size);
    }
}

static const struct lossy_entry *lossy_entry_of(const struct lossy_entry *entries,
                                                size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

static void lossy_write_out(int number, const char *now, const char *after,
                            lossy_mode mode);

/* Writes NAME of a directory as it was synced, or as it is NOW. */
static void lossy_write_name(const struct lossy_entry *synced,
                             const struct lossy_entry *current, const char *now,
                             const char *after, lossy_mode mode)
{
    bool keep = mode == KEEP_NAMES || (mode == LOSE_SOME && rand() % 2);
    const struct lossy_entry *chosen = keep ? current : synced;
    char now_path[1024], after_path[1024];
    if (!chosen)
        return;
    snprintf(now_path, sizeof now_path, "%s/%s", now ? now : "", chosen->name);
    snprintf(after_path, sizeof after_path, "%s/%s", after, chosen->name);
    bool is_there = current && current->node == chosen->node;
    lossy_write_out(chosen->node, is_there ? now_path : NULL, after_path, mode);
}

/* Writes what is left of a node to AFTER. NOW is its current path, or NULL. */
static void lossy_write_out(int number, const char *now, const char *after,
                            lossy_mode mode)
{
    const lossy_node *node = &lossy->nodes[number];
    if (!node->is_dir) {
        FILE *f = fopen(after, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(node->bytes, 1, node->n_bytes, f), node->n_bytes);
        if (!node->synced)
            fputs("torn", f);
        fclose(f);
        return;
    }
    struct lossy_entry current[LOSSY_ENTRIES];
    size_t n_current = 0;
    if (now)
        n_current = lossy_read_names(__real_open(now, O_RDONLY | O_DIRECTORY), current);
    assert_int_equal(mkdir(after, 0777), 0);
    for (size_t i = 0; i < node->n_entries; i++)
        lossy_write_name(&node->entries[i],
                         lossy_entry_of(current, n_current, node->entries[i].name), now,
                         after, mode);
    for (size_t i = 0; i < n_current; i++)
        if (!lossy_entry_of(node->entries, node->n_entries, current[i].name))
            lossy_write_name(NULL, &current[i], now, after, mode);
}

/* Writes to AFTER what a loss of power leaves of the directory NOW, which was given to
 * lossy_reset. */
static void lossy_cut(const char *now, const char *after, lossy_mode mode)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", after);
    assert_int_equal(system(command), 0);
    lossy_write_out(0, now, after, mode);
}

/* Makes PATH an empty and durable directory. */
static void lossy_reset(const char *path)
{
    char command[600];
    struct stat st;
    if (!lossy)
        lossy = mmap(NULL, sizeof *lossy, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(lossy != MAP_FAILED);
    snprintf(command, sizeof command, "rm -rf '%s'; mkdir '%s'", path, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(stat(path, &st), 0);
    lossy->n_nodes = 0;
    lossy_made(&st);
}

#endif
