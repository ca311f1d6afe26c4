/* The control block: invalid files, every transition, readers that hold it,
 * dead readers, deadlines, and threads that read while one writes. */
/* labels: threads */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "base/clock.h"
#include "weights/control.h"
#include "unit/temp_dir.h"

static char dir[300], path[340];

/* A new, empty directory. */
static void fresh(void)
{
    static unsigned n;
    snprintf(dir, sizeof dir, "%s/control-%u", temp_dir, n++);
    assert_int_equal(mkdir(dir, 0777), 0);
    snprintf(path, sizeof path, "%s/.deltawire", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/%s", dir, DW_CONTROL_NAME);
}

static dw_control_writer *make(unsigned wait_ms)
{
    dw_control_writer *w;
    dw_error err = {0};
    assert_int_equal(dw_control_writer_make(&w, dir, wait_ms, &err), DW_OK);
    assert_non_null(w);
    return w;
}

static dw_control_writer *open_again(void)
{
    dw_control_writer *w;
    dw_error err = {0};
    dw_status status = dw_control_writer_open(&w, dir, 0, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, DW_OK);
    return w;
}

/* The block as a reader maps it. */
typedef struct reader {
    int fd;
    dw_control *control;
    unsigned slot;
} reader;

static reader reader_open(unsigned slot)
{
    reader r = {.fd = open(path, O_RDWR | O_CLOEXEC), .slot = slot};
    assert_true(r.fd >= 0);
    r.control = mmap(NULL, DW_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
    assert_true(r.control != MAP_FAILED);
    bool taken;
    assert_int_equal(dw_control_lock_bytes(r.fd, DW_CONTROL_SLOT_OFFSET(slot),
                                           sizeof(dw_control_slot), &taken, path, NULL),
                     DW_OK);
    assert_true(taken);
    return r;
}

static void reader_close(reader *r)
{
    munmap(r->control, DW_CONTROL_BYTES);
    close(r->fd);
}

static dw_control_label label(uint64_t version)
{
    return (dw_control_label){"0123456789abcdef0123456789abcdef", version, version * 7,
                              version / 10};
}

static void write_version(dw_control_writer *w, uint64_t version)
{
    dw_error err = {0};
    dw_control_label l = label(version);
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
    dw_control_end_write(w, &l);
}

/* ---- the file ---- */

TEST(test_files)
{
    fresh();
    assert_null(open_again());
    assert_int_equal(access(path, F_OK), -1); /* reading creates nothing */
    dw_control_writer *w = make(0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, DW_CONTROL_BYTES);
    assert_int_equal(count_files(dir), 1);
    write_version(w, 5);
    dw_control_writer_close(w);
    w = open_again(); /* its contents stay */
    reader r = reader_open(0);
    dw_control_mark mark;
    assert_true(dw_control_begin(r.control, &mark));
    assert_int_equal(mark.version, 5);
    dw_control_writer_close(w);
    assert_true(dw_control_end(r.control, &mark));
    w = make(0);
    assert_false(dw_control_begin(r.control, &mark)); /* no longer valid */
    reader_close(&r);
    r = reader_open(0);
    assert_false(dw_control_begin(r.control, &mark));
    reader_close(&r);
    dw_control_writer_close(w);
    dw_control_writer_close(NULL);
}

TEST(test_foreign_files)
{
    uint8_t bytes[DW_CONTROL_BYTES + 1] = {0};
    for (unsigned kind = 0; kind < 8; kind++) {
        fresh();
        memcpy(bytes, DW_CONTROL_MAGIC, 8);
        bytes[8] = 1;
        switch (kind) {
        case 0:
            put_file(path, bytes, 0);
            break;
        case 1:
            put_file(path, bytes, DW_CONTROL_BYTES - 1);
            break;
        case 2:
            put_file(path, bytes, DW_CONTROL_BYTES + 1);
            break;
        case 3:
            bytes[6] ^= 1;
            put_file(path, bytes, DW_CONTROL_BYTES);
            break;
        case 4:
            bytes[8] = 2;
            put_file(path, bytes, DW_CONTROL_BYTES);
            break;
        case 5:
            assert_int_equal(symlink("/etc/passwd", path), 0);
            break;
        case 6:
            assert_int_equal(symlink("nowhere", path), 0);
            break;
        case 7:
            assert_int_equal(mkfifo(path, 0666), 0);
            break;
        }
        assert_null(open_again());
        dw_control_writer *w = make(0);
        write_version(w, 1);
        dw_control_writer_close(w);
        struct stat st;
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode) && st.st_size == DW_CONTROL_BYTES);
        w = open_again();
        assert_non_null(w);
        dw_control_writer_close(w);
    }
    /* random bytes in a block with a valid head */
    fresh();
    memset(bytes, 0xff, sizeof bytes);
    memcpy(bytes, DW_CONTROL_MAGIC, 8);
    memset(bytes + 8, 0, 8);
    bytes[8] = 1;
    put_file(path, bytes, DW_CONTROL_BYTES);
    dw_control_writer *w = open_again();
    assert_non_null(w);
    write_version(w, 3);
    reader r = reader_open(DW_CONTROL_SLOTS - 1);
    dw_control_mark mark;
    assert_true(dw_control_hold(r.control, r.slot, &mark));
    assert_true(mark.version == 3 && mark.sequence % 2 == 0);
    assert_true(memchr(r.control->stream, 0, sizeof r.control->stream) != NULL);
    reader_close(&r);
    dw_control_writer_close(w);
    /* reports a file that cannot be replaced */
    fresh();
    assert_int_equal(mkdir(path, 0777), 0);
    dw_error err;
    assert_int_equal(dw_control_writer_open(&w, dir, 0, &err), DW_IO);
    assert_int_equal(dw_control_writer_make(&w, dir, 0, &err), DW_IO);
    assert_null(w);
}

/* ---- transitions ---- */

TEST(test_writing)
{
    fresh();
    dw_control_writer *w = make(0);
    reader r = reader_open(7);
    dw_control_mark mark, before;
    dw_error err = {0};
    assert_false(dw_control_begin(r.control, &mark)); /* no version */
    assert_false(dw_control_hold(r.control, r.slot, &mark));
    for (uint64_t version = 1; version < 30; version++) {
        dw_control_label l = label(version);
        assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
        assert_int_equal(r.control->weights.sequence % 2, 1);
        assert_false(dw_control_begin(r.control, &mark));
        assert_false(dw_control_hold(r.control, r.slot, &mark));
        assert_int_equal(r.control->slots[r.slot].holds, 0);
        if (version > 1)
            assert_false(dw_control_end(r.control, &before));
        dw_control_end_write(w, &l);
        assert_true(dw_control_begin(r.control, &mark));
        assert_true(mark.version == version && mark.state == l.state &&
                    mark.files == l.files);
        assert_string_equal(r.control->stream, l.stream);
        assert_true(dw_control_end(r.control, &mark));
        before = mark;
        dw_control_set(w, &l); /* already right: nobody is disturbed */
        assert_true(dw_control_end(r.control, &mark));
        l.files++;
        dw_control_set(w, &l);
        assert_false(dw_control_end(r.control, &mark));
        assert_true(dw_control_begin(r.control, &before));
        assert_int_equal(before.files, l.files);
    }
    assert_int_equal(dw_control_sync(w, &err), DW_OK);
    /* a writer that is killed half way, and the next one */
    dw_control_mark_written(w);
    dw_control_writer_close(w);
    assert_false(dw_control_begin(r.control, &mark));
    w = open_again();
    assert_false(dw_control_begin(r.control, &mark));
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
    assert_false(dw_control_begin(r.control, &mark));
    dw_control_label l = label(30);
    dw_control_end_write(w, &l);
    assert_true(dw_control_begin(r.control, &mark));
    assert_true(mark.version == 30 && mark.sequence > before.sequence);
    dw_control_writer_close(w);
    reader_close(&r);
}

/* ---- readers that hold it ---- */

TEST(test_waiting)
{
    fresh();
    dw_control_writer *w = make(30);
    dw_error err = {0};
    dw_control_mark mark;
    write_version(w, 1);
    reader r = reader_open(3);
    r.control->slots[r.slot].process = 4711;
    assert_true(dw_control_hold(r.control, r.slot, &mark));
    const uint64_t start = dw_clock_ms();
    assert_int_equal(dw_control_begin_write(w, &err), DW_UNAVAILABLE);
    assert_true(dw_clock_ms() - start >= 30);
    assert_string_equal(err.where, path);
    assert_non_null(strstr(err.text, "process 4711"));
    assert_non_null(strstr(err.text, "slot 3"));
    /* nothing was written: other readers go on */
    assert_true(dw_control_end(r.control, &mark));
    reader s = reader_open(4);
    assert_true(dw_control_hold(s.control, s.slot, &mark) && mark.version == 1);
    dw_control_drop(s.control, s.slot);
    /* but an interrupted write stays marked */
    dw_control_mark_written(w);
    assert_int_equal(dw_control_begin_write(w, &err), DW_UNAVAILABLE);
    assert_false(dw_control_hold(s.control, s.slot, &mark));
    dw_control_drop(r.control, r.slot);
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
    reader_close(&r);
    reader_close(&s);
    dw_control_writer_close(w);
}

/* The writer waits for a reader that releases in time. */
static void *let_go(void *context)
{
    reader *r = context;
    dw_sleep_ms(30);
    dw_control_drop(r->control, r->slot);
    return NULL;
}

TEST(test_in_time)
{
    fresh();
    dw_control_writer *w = make(60000);
    dw_error err = {0};
    dw_control_mark mark;
    write_version(w, 1);
    reader r = reader_open(3);
    assert_true(dw_control_hold(r.control, r.slot, &mark));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, let_go, &r), 0);
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
    assert_int_equal(__atomic_load_n(&r.control->slots[3].holds, __ATOMIC_SEQ_CST), 0);
    pthread_join(thread, NULL);
    reader_close(&r);
    dw_control_writer_close(w);
}

/* Readers that were killed while they held it. */
TEST(test_dead)
{
    fresh();
    dw_control_writer *w = make(60000);
    dw_error err = {0};
    dw_control_mark mark;
    write_version(w, 1);
    for (unsigned slot = 0; slot < DW_CONTROL_SLOTS; slot += 11) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            reader r = reader_open(slot);
            _exit(dw_control_hold(r.control, r.slot, &mark) ? 99 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 99);
    }
    reader r = reader_open(1);
    assert_int_equal(r.control->slots[11].holds, 1);
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK); /* at once */
    assert_int_equal(r.control->slots[11].holds, 0);
    reader_close(&r);
    dw_control_writer_close(w);
}

TEST(test_one_writer)
{
    fresh();
    dw_control_writer *w = make(0), *other = open_again();
    dw_error err = {0};
    reader r = reader_open(0);
    assert_false(dw_control_bytes_locked(r.fd, 0, DW_CONTROL_HEAD_BYTES));
    assert_int_equal(dw_control_writer_lock(w, &err), DW_OK);
    assert_true(dw_control_bytes_locked(r.fd, 0, DW_CONTROL_HEAD_BYTES));
    assert_int_equal(dw_control_writer_lock(other, &err), DW_CONFLICT);
    dw_control_writer_close(w);
    assert_false(dw_control_bytes_locked(r.fd, 0, DW_CONTROL_HEAD_BYTES));
    assert_int_equal(dw_control_writer_lock(other, &err), DW_OK);
    dw_control_writer_close(other);
    reader_close(&r);
    /* weights in memory have no block: all calls are allowed */
    dw_control_label l = label(1);
    assert_int_equal(dw_control_writer_lock(NULL, &err), DW_OK);
    assert_int_equal(dw_control_begin_write(NULL, &err), DW_OK);
    dw_control_mark_written(NULL);
    dw_control_end_write(NULL, &l);
    dw_control_set(NULL, &l);
    assert_int_equal(dw_control_sync(NULL, &err), DW_OK);
}

/* ---- all at once ---- */

#define N_READERS 3
#define N_WORDS   512
#define N_ROUNDS  400

static struct {
    uint64_t weights[N_WORDS]; /* all words are the version */
    _Atomic bool done;
    _Atomic unsigned n_mixed, n_refused, n_held;
} world;

/* The block is mapped at several addresses, so the thread sanitizer cannot see the
 * synchronisation. */
static uint64_t load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void *hold_and_read(void *context)
{
    reader r = reader_open((unsigned)(uintptr_t)context);
    uint64_t last = 0;
    while (!world.done) {
        dw_control_mark mark;
        if (!dw_control_hold(r.control, r.slot, &mark)) {
            world.n_refused++;
            continue;
        }
        for (size_t i = 0; i < N_WORDS; i++)
            if (load(&world.weights[i]) != mark.version)
                world.n_mixed++;
        if (mark.version < last)
            world.n_mixed++;
        last = mark.version;
        dw_control_drop(r.control, r.slot);
        world.n_held++;
    }
    reader_close(&r);
    return NULL;
}

static void put_version(dw_control_writer *w, uint64_t version)
{
    dw_error err = {0};
    dw_control_label l = label(version);
    assert_int_equal(dw_control_begin_write(w, &err), DW_OK);
    for (size_t i = 0; i < N_WORDS; i++)
        __atomic_store_n(&world.weights[i], version, __ATOMIC_RELAXED);
    dw_control_end_write(w, &l);
}

TEST(test_threads)
{
    fresh();
    memset(&world, 0, sizeof world);
    dw_control_writer *w = make(60000);
    put_version(w, 1);
    pthread_t threads[N_READERS];
    for (uintptr_t i = 0; i < N_READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hold_and_read, (void *)i), 0);
    for (uint64_t version = 2; version < N_ROUNDS || world.n_held < 1000; version++)
        put_version(w, version);
    world.done = true;
    for (size_t i = 0; i < N_READERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(world.n_mixed, 0);
    dw_control_writer_close(w);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
