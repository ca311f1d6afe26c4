/* labels: threads */
#include <fcntl.h>
#include <sys/file.h>

#include "unit/suite.h"

#include "codec/patch.h"
#include "codec/stage.h"
#include "disk_model.h"
#include "failing_allocator.h"

TEST(test_in_place)
{
    for (int sharded = 0; sharded < 2; sharded++)
        for (unsigned n_threads = 1; n_threads <= 3; n_threads += 2) {
            disk_model d;
            dw_apply_report report;
            dw_error err;
            disk_make(&d, "in_place", sharded, 3000);
            dw_apply_options options = {.struct_bytes = sizeof options,
                                        .n_threads = n_threads};
            assert_int_equal(
                dw_checkpoint_apply(d.path, d.delta, &options, &report, &err), DW_OK);
            assert_true(disk_is_new(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
            dw_delta_info info;
            dw_delta_get_info(d.delta, &info);
            assert_false(report.already_applied);
            assert_false(report.recovered);
            assert_true(report.verified);
            assert_int_equal(report.n_changed, info.n_changed);
            assert_true(report.new_state == info.new_state);

            assert_int_equal(
                dw_checkpoint_apply(d.path, d.delta, &options, &report, &err), DW_OK);
            assert_true(report.already_applied && report.verified);
            assert_int_equal(report.n_changed, 0);
            assert_true(report.new_state == info.new_state);
            assert_true(disk_is_new(&d) && disk_is_tidy(&d));
            disk_free(&d);
        }
}

/* By any of its names it is the same checkpoint, with one patch file and one lock. */
TEST(test_all_names)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        disk_make(&d, "names", sharded, 100);
        char with_slash[400];
        snprintf(with_slash, sizeof with_slash, "%s/", d.dir);
        const char *const names[] = {d.path, d.dir, with_slash, d.files[0]};
        for (size_t i = 0; i < 4; i++) {
            disk_reset(&d);
            dw_apply_report report;
            assert_int_equal(dw_checkpoint_apply(names[i], d.delta, NULL, &report, NULL),
                             DW_OK);
            assert_true(disk_is_new(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
        }
        disk_free(&d);
    }
}

TEST(test_wrong_base)
{
    disk_model d;
    dw_error err;
    disk_make(&d, "wrong_base", true, 500);
    /* one bit of the data of the last shard */
    uint8_t *kept = d.old_bytes[2], *altered = malloc(d.n_bytes[2]);
    memcpy(altered, kept, d.n_bytes[2]);
    altered[d.n_bytes[2] - 1] ^= 1;
    d.old_bytes[2] = altered;
    disk_reset(&d);
    dw_apply_report report;
    assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, &report, &err), DW_STALE);
    assert_non_null(strstr(err.text, "the weights are not version 0"));
    assert_true(disk_is_old(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
    d.old_bytes[2] = kept;
    free(altered);
    disk_free(&d);
}

TEST(test_other_model)
{
    disk_model d, other;
    dw_error err;
    disk_make(&d, "one", true, 50);
    disk_make(&other, "other", false, 60);
    assert_int_equal(dw_checkpoint_apply(d.path, other.delta, NULL, NULL, &err),
                     DW_MISMATCH);
    assert_non_null(strstr(err.text, "tensor 'a'"));
    assert_true(disk_is_old(&d) && disk_is_tidy(&d));
    assert_int_equal(dw_checkpoint_apply(temp_path("nothing"), d.delta, NULL, NULL, &err),
                     DW_NOT_FOUND);
    disk_free(&d);
    disk_free(&other);
}

/* TRL's own files have no digests: they are applied and reported as unverified. */
TEST(test_unverified)
{
    disk_model d;
    disk_make(&d, "unverified", false, 100);
    static const uint64_t one[] = {1};
    static const int32_t index = 7;
    static const uint16_t value = 0x1234;
    const dw_tensor parts[] = {{"a.idx", DW_I32, 1, one, 4, (void *)&index, 0, NULL},
                               {"a.val", DW_BF16, 1, one, 2, (void *)&value, 0, NULL}};
    static const dw_pair metadata[] = {
        {"format", "sparse_weight_patch"}, {"sparse", "True"}, {"encoding", "raw"}};
    const dw_checkpoint_write_options o = {
        .struct_bytes = sizeof o, .metadata = metadata, .n_metadata = 3};
    assert_int_equal(dw_checkpoint_write(temp_path("trl"), parts, 2, &o, NULL), DW_OK);
    dw_delta *delta;
    dw_apply_report report;
    assert_int_equal(dw_delta_open(&delta, temp_path("trl"), NULL), DW_OK);
    for (int again = 0; again < 2; again++) { /* no base: applying it twice is no error */
        assert_int_equal(dw_checkpoint_apply(d.path, delta, NULL, &report, NULL), DW_OK);
        assert_false(report.verified);
        assert_false(report.already_applied);
        dw_checkpoint *ckpt;
        assert_int_equal(dw_checkpoint_open(&ckpt, d.path, DW_CHECKPOINT_READ, NULL),
                         DW_OK);
        assert_int_equal(dw_load16((uint8_t *)dw_checkpoint_find(ckpt, "a")->data + 14),
                         0x1234);
        dw_checkpoint_close(ckpt);
    }
    dw_delta_close(delta);
    disk_free(&d);
}

TEST(test_lock)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        dw_error err;
        bool recovered;
        disk_make(&d, "lock", sharded, 50);
        dw_checkpoint *ckpt;
        assert_int_equal(dw_checkpoint_open(&ckpt, d.path, DW_CHECKPOINT_READ, &err),
                         DW_OK);
        int fd = open(dw_checkpoint_file(ckpt, 0), O_RDWR);
        dw_checkpoint_close(ckpt);
        assert_int_equal(flock(fd, LOCK_EX), 0);
        assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, NULL, &err),
                         DW_CONFLICT);
        assert_string_equal(err.text, "another process is applying to this checkpoint");
        assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, &err), DW_CONFLICT);
        assert_true(disk_is_old(&d) && disk_is_tidy(&d));
        close(fd);
        assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, NULL, &err), DW_OK);
        assert_true(disk_is_new(&d));
        disk_free(&d);
    }
}

static int stop(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)context;
    (void)bytes_done;
    (void)bytes_total;
    return 1;
}

TEST(test_cancel)
{
    disk_model d;
    disk_make(&d, "cancel", true, 50);
    dw_apply_options options = {.struct_bytes = sizeof options, .progress = {stop, NULL}};
    assert_int_equal(dw_checkpoint_apply(d.path, d.delta, &options, NULL, NULL),
                     DW_CANCELLED);
    assert_true(disk_is_old(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
    disk_free(&d);
}

/* ---- recovery
 * -------------------------------------------------------------------------- */

/* Writes the patch file, like an apply that was killed right after. */
static void leave_patch(const disk_model *d)
{
    dw_checkpoint *ckpt;
    dw_stage *stage;
    dw_stage_result result;
    dw_patch_writer *writer;
    size_t n;
    dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = 1};
    assert_int_equal(dw_checkpoint_open(&ckpt, d->path, DW_CHECKPOINT_READ, NULL), DW_OK);
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    assert_int_equal(dw_stage_open(&stage, d->delta, tensors, n, 1, NULL), DW_OK);
    disk_make_own_dir(d);
    assert_int_equal(dw_patch_writer_open(&writer, d->patch, tensors, n, NULL), DW_OK);
    assert_int_equal(
        dw_stage_verify(&result, stage, &options, dw_patch_writer_take, writer, NULL),
        DW_OK);
    dw_delta_info info;
    dw_delta_get_info(d->delta, &info);
    const dw_patch_goal goal = {true, info.new_state, info.new_version};
    assert_int_equal(dw_patch_writer_commit(writer, &goal, NULL), DW_OK);
    dw_stage_close(stage);
    dw_checkpoint_close(ckpt);
}

/* A shard that is named by itself belongs to the checkpoint of its directory. */
TEST(test_shard_is_no_way_around)
{
    disk_model d;
    bool pending;
    disk_make(&d, "shard", true, 50);
    leave_patch(&d);
    for (size_t i = 0; i < d.n_files; i++) {
        pending = false;
        assert_int_equal(dw_checkpoint_pending(d.files[i], &pending, NULL), DW_OK);
        assert_true(pending);
    }
    assert_int_equal(dw_checkpoint_recover(d.path, 1, &pending, NULL), DW_OK);
    assert_true(pending && disk_is_new(&d));
    assert_int_equal(dw_checkpoint_pending(d.files[0], &pending, NULL), DW_OK);
    assert_false(pending);
    disk_free(&d);
}

/* One allocation fails, later ones do not: the result must be right or an error. */
TEST(test_pending_out_of_memory)
{
    disk_model d;
    disk_make(&d, "scarce", true, 50);
    leave_patch(&d);
    const char *const paths[] = {d.path, d.files[0]};
    for (size_t p = 0; p < 2; p++) {
        size_t n_failed = 0;
        for (size_t n = 0;; n++) {
            failing_allocator a;
            bool pending = false;
            failing_allocator_install(&a, n);
            a.once = true;
            dw_status status = dw_checkpoint_pending(paths[p], &pending, NULL);
            dw_set_allocator(NULL);
            assert_int_equal(a.n_live, 0);
            if (status == DW_OK)
                assert_true(pending);
            else
                assert_int_equal(status, DW_NO_MEMORY);
            n_failed += status != DW_OK;
            if (!a.has_failed)
                break;
        }
        assert_true(n_failed > 3);
    }
    disk_free(&d);
}

/* Any mix of old and new on the disk: pages of 512 bytes, bytes, none or all. */
TEST(test_torn_stores)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        disk_make(&d, "torn", sharded, 700);
        for (unsigned round = 0; round < 40; round++) {
            disk_reset(&d);
            leave_patch(&d);
            const size_t grain = round % 2 ? 512 : 1;
            for (size_t i = 0; i < d.n_files; i++) {
                uint8_t *mixed = malloc(d.n_bytes[i]);
                for (size_t at = 0; at < d.n_bytes[i]; at++) {
                    if (at % grain == 0)
                        random64();
                    bool new_ = round < 2   ? false
                                : round < 4 ? true
                                            : random_state % 3 == 0;
                    mixed[at] = (new_ ? d.new_bytes : d.old_bytes)[i][at];
                }
                put_file(d.files[i], mixed, d.n_bytes[i]);
                free(mixed);
            }
            dw_apply_report report;
            bool recovered = false;
            dw_error err;
            if (round % 4 < 2) {
                assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, &err),
                                 DW_OK);
            } else {
                assert_int_equal(
                    dw_checkpoint_apply(d.path, d.delta, NULL, &report, &err), DW_OK);
                recovered = report.recovered;
                assert_true(report.already_applied);
            }
            assert_true(recovered);
            assert_true(disk_is_new(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
        }
        disk_free(&d);
    }
}

TEST(test_pending)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        bool pending = true, recovered;
        disk_make(&d, "pending", sharded, 50);
        assert_int_equal(dw_checkpoint_pending(d.path, &pending, NULL), DW_OK);
        assert_false(pending);
        leave_patch(&d);
        assert_int_equal(dw_checkpoint_pending(d.path, &pending, NULL), DW_OK);
        assert_true(pending);
        assert_true(disk_is_old(&d) && disk_has_patch(&d)); /* only read */
        assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, NULL), DW_OK);
        assert_int_equal(dw_checkpoint_pending(d.path, &pending, NULL), DW_OK);
        assert_false(pending);
        disk_free(&d);
    }
    bool pending;
    dw_error err;
    assert_int_equal(dw_checkpoint_pending(temp_path("nothing"), &pending, &err),
                     DW_NOT_FOUND);
}

/* Weights that were replaced meanwhile are not written to. */
TEST(test_replaced_checkpoint)
{
    disk_model d;
    bool recovered;
    dw_error err;
    disk_make(&d, "replaced", false, 200);
    leave_patch(&d);
    model_fill(&d.new_model);
    disk_write(&d, &d.new_model, false);
    size_t n;
    uint8_t *before = get_file(d.path, &n);
    assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, &err), DW_STALE);
    assert_string_equal(err.where, d.patch);
    uint8_t *after = get_file(d.path, &n);
    assert_memory_equal(before, after, n);
    assert_true(disk_has_patch(&d));
    free(before);
    free(after);
    disk_free(&d);
}

TEST(test_nothing_to_recover)
{
    disk_model d;
    bool recovered = true;
    disk_make(&d, "fine", true, 50);
    assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, NULL), DW_OK);
    assert_false(recovered);
    assert_int_equal(dw_checkpoint_recover(d.path, 0, NULL, NULL), DW_OK);
    assert_true(disk_is_old(&d) && disk_is_tidy(&d));
    disk_free(&d);
}

/* A patch file that is damaged, or belongs to another model, is left for a person to
 * examine. */
TEST(test_bad_patch)
{
    disk_model d, other;
    dw_error err;
    bool recovered;
    disk_make(&d, "bad_patch", false, 50);
    disk_make(&other, "other_patch", false, 60);
    disk_make_own_dir(&d);
    put_text(d.patch, "DWPATCH1 and then nothing of the kind");
    assert_int_equal(dw_checkpoint_recover(d.path, 0, &recovered, &err), DW_CORRUPT);
    assert_string_equal(err.where, d.patch);
    assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, NULL, &err), DW_CORRUPT);
    assert_true(disk_is_old(&d) && disk_has_patch(&d));

    leave_patch(&other);
    size_t n;
    uint8_t *bytes = get_file(other.patch, &n);
    put_file(d.patch, bytes, n);
    free(bytes);
    assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, NULL, &err), DW_MISMATCH);
    assert_true(disk_is_old(&d) && disk_has_patch(&d));
    disk_free(&d);
    disk_free(&other);
}

/* Another process that maps the file sees the stores: nothing is replaced. */
TEST(test_shared_map)
{
    disk_model d;
    disk_make(&d, "shared", false, 500);
    dw_checkpoint *ckpt;
    size_t n;
    assert_int_equal(dw_checkpoint_open(&ckpt, d.path, DW_CHECKPOINT_READ, NULL), DW_OK);
    assert_int_equal(dw_checkpoint_apply(d.path, d.delta, NULL, NULL, NULL), DW_OK);
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(tensors[i].data,
                            model_find(&d.new_model, tensors[i].name)->data,
                            (size_t)tensors[i].n_bytes);
    dw_checkpoint_close(ckpt);
    disk_free(&d);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
