#define _GNU_SOURCE /* F_OFD_GETLK */
#include "mapped.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "program.h"

enum { HOLD_MS = 200, LOOK_EVERY_MS = 1000 };

struct mapped {
    const char *dir;
    char *control_path;
    dw_snapshot *snapshot; /* NULL: not open */
    struct stat block;     /* of the control block, before it was opened */
    uint64_t n_opened;
    uint64_t t_looked_ms;
    char stream[64];
    qwen_weights *weights; /* bound to the files of `mark`; NULL: to none */
    dw_control_mark mark;
};

dw_status mapped_new(mapped **out, const char *dir, dw_error *err)
{
    static const char name[] = "/" DW_CONTROL_NAME;
    mapped *m = calloc(1, sizeof *m);
    const size_t n = strlen(dir) + sizeof name;
    char *path = malloc(n);
    if (!m || !path) {
        free(m);
        free(path);
        return wordle_fail(err, DW_NO_MEMORY, dir, "out of memory");
    }
    snprintf(path, n, "%s%s", dir, name);
    m->dir = dir;
    m->control_path = path;
    *out = m;
    return DW_OK;
}

static void close_snapshot(mapped *m)
{
    qwen_weights_free(m->weights);
    dw_snapshot_close(m->snapshot);
    m->weights = NULL;
    m->snapshot = NULL;
}

void mapped_free(mapped *m)
{
    if (!m)
        return;
    close_snapshot(m);
    free(m->control_path);
    free(m);
}

static void read_stream(mapped *m)
{
    char stream[sizeof m->stream] = "";
    const int fd = open(m->control_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    const ssize_t n = pread(fd, stream, sizeof stream, offsetof(dw_control, stream));
    close(fd);
    if (n != sizeof stream)
        return;
    memcpy(m->stream, stream, sizeof stream);
    m->stream[sizeof stream - 1] = '\0';
}

/* A directory that was made again has another control block: the mapping is outdated. */
static void look_at_block(mapped *m, uint64_t now_ms)
{
    struct stat st;
    m->t_looked_ms = now_ms;
    if (stat(m->control_path, &st) != 0 || st.st_ino != m->block.st_ino ||
        st.st_dev != m->block.st_dev)
        close_snapshot(m);
    else
        read_stream(m);
}

static dw_status open_snapshot(mapped *m, dw_error *err)
{
    const uint64_t now_ms = program_clock_ms();
    if (m->snapshot && now_ms - m->t_looked_ms >= LOOK_EVERY_MS)
        look_at_block(m, now_ms);
    if (m->snapshot)
        return DW_OK;
    if (stat(m->control_path, &m->block) != 0)
        return wordle_fail(err, DW_NOT_FOUND, m->dir,
                           "no follower keeps weights here yet");
    m->t_looked_ms = now_ms;
    m->n_opened++;
    dw_status status = dw_snapshot_open(&m->snapshot, m->dir, err);
    if (status == DW_OK)
        read_stream(m);
    return status;
}

dw_status mapped_hold(mapped *m, dw_snapshot_view *view, dw_error *err)
{
    dw_status status = open_snapshot(m, err);
    if (status == DW_OK)
        status = dw_snapshot_hold(m->snapshot, HOLD_MS, view, err);
    if (status != DW_OK)
        mapped_look(m);
    return status;
}

void mapped_release(mapped *m)
{
    dw_snapshot_release(m->snapshot);
}

dw_status mapped_bind(mapped *m, const qwen_config *config, const dw_snapshot_view *view,
                      const qwen_weights **weights, dw_error *err)
{
    dw_status status = DW_OK;
    if (!m->weights || m->mark.files != view->mark.files) {
        qwen_weights_free(m->weights);
        m->weights = NULL;
        m->mark = view->mark;
        status =
            qwen_weights_bind(&m->weights, config, view->tensors, view->n_tensors, err);
    }
    *weights = m->weights;
    return status;
}

void mapped_look(mapped *m)
{
    m->t_looked_ms = 0;
}

/* The writer has locked the head of the block (docs/FORMAT.md, section 13). */
bool mapped_has_writer(const mapped *m)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = offsetof(dw_control, weights)};
    const int fd = open(m->control_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    const bool asked = fcntl(fd, F_OFD_GETLK, &lock) == 0;
    close(fd);
    return asked && lock.l_type != F_UNLCK;
}

uint64_t mapped_n_opened(const mapped *m)
{
    return m->n_opened;
}

const char *mapped_stream(const mapped *m)
{
    return m->stream;
}
