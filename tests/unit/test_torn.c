/* Weights that another process writes while they are read. A read may get a mix of old
 * and new values, but a delta must decode to exactly the values that were read, and a
 * version must reach its followers. */
/* labels: threads */
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "unit/suite.h"

#include "unit/every_kernel.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

/* ---- weights that always change ---- */

typedef struct live_weights {
    dw_tensor tensor; /* in memory that both processes see */
    pid_t writer;
} live_weights;

/* Each pass changes some of the elements: nearly none of them or nearly all. */
static _Noreturn void write_for_ever(const dw_tensor *t, pid_t parent)
{
    const dw_element element = dw_dtype_element(t->dtype);
    const uint64_t n = t->n_bytes / element.width;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned pass = 0; getppid() == parent; pass++) {
        const uint64_t step = pass % 2 == 0 ? 1 : 61;
        for (uint64_t i = pass % step; i < n; i += step)
            dw_element_store(t->data, i, element.width, random_weight(element));
    }
    _exit(0);
}

static live_weights live_start(dw_dtype dtype, const uint64_t *n_elems)
{
    live_weights l = {.tensor = {"w", dtype, 1, n_elems, 0, NULL, 0, NULL}};
    assert_true(dw_shape_size(dtype, 1, n_elems, NULL, &l.tensor.n_bytes));
    l.tensor.data = mmap(NULL, l.tensor.n_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(l.tensor.data != MAP_FAILED);
    const dw_element element = dw_dtype_element(dtype);
    fill_weights(l.tensor.data, l.tensor.n_bytes / element.width, element);
    const pid_t parent = getpid();
    l.writer = fork();
    if (l.writer == 0)
        write_for_ever(&l.tensor, parent);
    assert_true(l.writer > 0);
    return l;
}

static void live_stop(live_weights *l)
{
    kill(l->writer, SIGKILL);
    waitpid(l->writer, NULL, 0);
    munmap(l->tensor.data, l->tensor.n_bytes);
}

/* ---- deltas ---- */

static dw_tensor copy_of(const dw_tensor *t)
{
    dw_tensor copy = *t;
    copy.data = memcpy(malloc(t->n_bytes), t->data, t->n_bytes);
    return copy;
}

/* Makes a delta from BASE to the live weights, and applies it to a copy. */
static void check_delta(dw_tensor *base, const dw_tensor *next, dw_diff_options options)
{
    dw_error err = {0};
    dw_digest before, after;
    assert_ok(dw_digest_tensors(&before, NULL, base, 1, 1, NULL, &err), &err);
    dw_tensor follower = copy_of(base);
    dw_delta *delta;
    options.n_threads = 1;
    options.base_digests = &before;
    options.new_digests = &after;
    assert_ok(dw_delta_diff(&delta, base, next, 1, &options, &err), &err);
    assert_ok(dw_delta_apply(delta, &follower, 1, NULL, &err), &err);
    dw_digest found;
    assert_ok(dw_digest_tensors(&found, NULL, &follower, 1, 1, NULL, &err), &err);
    assert_int_equal(found, after);
    if (options.update_base)
        assert_memory_equal(base->data, follower.data, base->n_bytes);
    memcpy(base->data, follower.data, base->n_bytes);
    dw_delta_close(delta);
    free(follower.data);
}

static void check_deltas(dw_dtype dtype, dw_dtype base_dtype)
{
    static const uint64_t n_elems[] = {120007};
    live_weights live = live_start(dtype, n_elems);
    dw_tensor base = {"w", base_dtype, 1, n_elems, 0, NULL, 0, NULL};
    assert_true(dw_shape_size(base_dtype, 1, n_elems, NULL, &base.n_bytes));
    base.data = calloc(1, base.n_bytes);
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.round_next = true;
    for (unsigned i = 0; i < 8; i++) {
        options.update_base = i % 2 == 1;
        options.codec = i % 4 < 3 ? DW_CODEC_CLASS : DW_CODEC_RAW;
        check_delta(&base, &live.tensor, options);
    }
    free(base.data);
    live_stop(&live);
}

TEST(test_deltas_of_every_width)
{
    static const dw_dtype dtypes[] = {DW_F8_E4M3, DW_BF16, DW_F32, DW_F64, DW_I64};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        check_deltas(dtypes[i], dtypes[i]);
}

TEST(test_deltas_of_masters)
{
    check_deltas(DW_F32, DW_BF16);
}

/* ---- versions ---- */

/* Publishes the live weights; every version must reach a follower with exactly the
 * weights of the publisher's baseline. */
static void check_versions(dw_dtype dtype, bool as_bf16)
{
    static const uint64_t n_elems[] = {150001};
    live_weights live = live_start(dtype, n_elems);
    dw_error err = {0};
    dw_store *store = kit_mem_store();
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.baseline_dir = temp_path("baseline");
    options.as_bf16 = as_bf16 ? &as_bf16 : NULL;
    options.max_object_bytes = 1 << 16;
    options.n_threads = 2;
    dw_publisher *p;
    kill(live.writer, SIGSTOP); /* version 0 is read twice, and refused if it changed */
    assert_ok(dw_publisher_open(&p, store, &live.tensor, 1, &options, &err), &err);
    kill(live.writer, SIGCONT);

    dw_tensor room = live.tensor;
    room.dtype = as_bf16 ? DW_BF16 : dtype;
    room.n_bytes = live.tensor.n_bytes / (as_bf16 ? 2 : 1);
    room.data = calloc(1, room.n_bytes);
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = &room;
    follow.n_tensors = 1;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    for (uint64_t v = 1; v <= 4; v++) {
        uint64_t ticket;
        dw_publish_report report;
        assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
        assert_int_equal(report.version, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
        assert_ok(dw_follower_sync(f, v, NULL, NULL, &err), &err);
        assert_int_equal(dw_follower_version(f), v);
        dw_checkpoint *baseline;
        size_t n;
        assert_ok(dw_checkpoint_open(&baseline, temp_path("baseline"), DW_CHECKPOINT_READ,
                                     &err),
                  &err);
        const dw_tensor *held = dw_checkpoint_tensors(baseline, &n);
        assert_int_equal(held->n_bytes, room.n_bytes);
        assert_memory_equal(held->data, room.data, room.n_bytes);
        dw_checkpoint_close(baseline);
    }
    dw_follower_close(f);
    free(room.data);
    dw_publisher_close(p);
    kit_verify(store);
    dw_store_close(store);
    live_stop(&live);
}

TEST_WITH(test_versions, temp_dir_make, temp_dir_remove)
{
    check_versions(DW_BF16, false);
}

TEST_WITH(test_versions_of_masters, temp_dir_make, temp_dir_remove)
{
    check_versions(DW_F32, true);
}

static int run(void)
{
    return suite_run(NULL, NULL);
}

int main(int argc, char **argv)
{
    (void)argc;
    return under_every_kernel(argv, run);
}
