/* labels: threads */
#include "unit/suite.h"

#include "weights/target_inside.h"
#include "disk_model.h"
#include "failing_allocator.h"
#include "random_parts.h"

static disk_model disk;
static parts two_versions; /* old to new */
static dw_patch_goal goal;

static void make(bool sharded, uint64_t scale)
{
    disk_make(&disk, "held", sharded, scale);
    two_versions = parts_make(&disk.old_model, &disk.new_model, DW_CODEC_CLASS);
    goal = parts_goal(&two_versions, &disk.new_model);
}

static void drop(void)
{
    parts_free(&two_versions);
    disk_free(&disk);
}

static dw_target *hold(void)
{
    dw_target *r;
    bool recovered = true;
    dw_error err = {0};
    dw_status status =
        dw_target_open_checkpoint(&r, disk.path, 2, false, &recovered, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, DW_OK);
    assert_false(recovered);
    return r;
}

static dw_status stage(dw_target *r, const dw_patch_goal *to, dw_error *err)
{
    return dw_target_stage_parts(r, two_versions.list, CUT_PARTS, to, NULL, err);
}

static size_t n_files(void)
{
    return count_files(disk.dir);
}

TEST(test_steps)
{
    for (int sharded = 0; sharded < 2; sharded++)
        for (int sweep = 0; sweep < 2; sweep++) {
            make(sharded, 3000);
            dw_target *r = hold();
            bool pending;
            size_t n;
            assert_non_null(dw_checkpoint_tensors(r->files.ckpt, &n));
            assert_int_equal(n, 4);
            assert_null(dw_target_staged_path(r));

            assert_int_equal(stage(r, &goal, NULL), DW_OK);
            const char *staged = dw_target_staged_path(r);
            assert_non_null(strstr(staged, "/.deltawire/"));
            assert_int_equal(access(staged, F_OK), 0);
            assert_true(disk_is_old(&disk) && !disk_has_patch(&disk));
            assert_int_equal(dw_checkpoint_pending(disk.path, &pending, NULL), DW_OK);
            assert_false(pending);

            assert_false(r->update > DW_UPDATE_STAGED);

            for (int again = 0; again < 2; again++) { /* apply may do it too */
                if (!sweep)
                    assert_int_equal(dw_target_prepare(r, NULL), DW_OK);
                assert_true(disk_is_old(&disk) && disk_has_patch(&disk) == !sweep);
                assert_int_equal(r->update > DW_UPDATE_STAGED, !sweep);
            }
            assert_int_equal(dw_target_apply(r, NULL), DW_OK);
            assert_string_equal(dw_target_staged_path(r), disk.patch);
            assert_true(disk_is_new(&disk) && disk_has_patch(&disk) &&
                        disk_is_tidy(&disk));
            assert_int_equal(dw_checkpoint_pending(disk.path, &pending, NULL), DW_OK);
            assert_true(pending);
            assert_int_equal(dw_target_apply(r, NULL), DW_OK); /* already done */

            assert_int_equal(dw_target_prepare(r, NULL), DW_OK); /* already applied */
            assert_int_equal(dw_target_finish(r, sweep, NULL), DW_OK);
            assert_null(dw_target_staged_path(r));
            assert_false(r->update > DW_UPDATE_STAGED);
            assert_true(disk_is_new(&disk) && !disk_has_patch(&disk) &&
                        disk_is_tidy(&disk));
            dw_target_close(r);
            drop();
        }
    dw_target_close(NULL);
}

/* Version after version with one holder, which keeps the digests. */
TEST(test_many_versions)
{
    make(true, 500);
    dw_target *r = hold();
    model now = model_copy(&disk.old_model, false);
    dw_slice slices[4];
    dw_digest digests[4];
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n);
    for (size_t t = 0; t < 4; t++)
        slices[t] = dw_slice_whole(tensors, t);
    assert_int_equal(dw_digest_tensors(digests, NULL, tensors, n, 1, NULL, NULL), DW_OK);
    for (unsigned version = 1; version <= 8; version++) {
        model next = model_copy(&now, false);
        model_change(&next, 50);
        dw_delta *delta;
        dw_digest after[4];
        assert_int_equal(dw_delta_diff(&delta, now.tensors, next.tensors, 4, NULL, NULL),
                         DW_OK);
        dw_part part = {.delta = delta,
                        .slices = slices,
                        .n_slices = 4,
                        .base_digests = digests,
                        .new_digests = after};
        dw_delta_info info;
        dw_delta_get_info(delta, &info);
        const dw_patch_goal to = {true, info.new_state, version};
        assert_int_equal(dw_target_stage_parts(r, &part, 1, &to, NULL, NULL), DW_OK);
        assert_int_equal(dw_target_apply(r, NULL), DW_OK);
        assert_int_equal(dw_target_finish(r, version % 2, NULL), DW_OK);
        memcpy(digests, after, sizeof digests);
        for (size_t t = 0; t < 4; t++)
            assert_memory_equal(tensors[t].data, next.tensors[t].data,
                                (size_t)tensors[t].n_bytes);
        dw_delta_close(delta);
        model_free(&now);
        now = next;
    }
    dw_target_close(r);
    assert_true(disk_is_tidy(&disk));
    model_free(&now);
    drop();
}

TEST(test_discard_and_replace)
{
    make(false, 300);
    dw_target *r = hold();
    assert_int_equal(dw_target_discard(r, NULL), DW_OK); /* nothing is staged */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stage(r, &goal, NULL), DW_OK);
        assert_int_equal(n_files(), disk.n_files + 1);
    }
    assert_int_equal(dw_target_discard(r, NULL), DW_OK);
    assert_null(dw_target_staged_path(r));
    assert_true(disk_is_old(&disk) && disk_is_tidy(&disk));
    /* a refused one also drops the one before */
    assert_int_equal(stage(r, &goal, NULL), DW_OK);
    dw_patch_goal wrong = goal;
    wrong.state ^= 1;
    assert_int_equal(stage(r, &wrong, NULL), DW_CORRUPT);
    assert_null(dw_target_staged_path(r));
    assert_true(disk_is_old(&disk) && disk_is_tidy(&disk));
    /* a staged version ends with its holder */
    assert_int_equal(stage(r, &goal, NULL), DW_OK);
    dw_target_close(r);
    assert_true(disk_is_old(&disk) && disk_is_tidy(&disk));
    drop();
}

TEST(test_wrong_order)
{
    make(false, 300);
    dw_error err;
    dw_target *r = hold();
    assert_int_equal(dw_target_prepare(r, &err), DW_INVALID);
    assert_string_equal(err.text, "nothing is staged");
    assert_int_equal(dw_target_apply(r, &err), DW_INVALID);
    assert_string_equal(err.text, "nothing is staged");
    assert_int_equal(dw_target_finish(r, true, &err), DW_INVALID);
    assert_string_equal(err.text, "nothing is applied");
    assert_int_equal(stage(r, &goal, NULL), DW_OK);
    assert_int_equal(dw_target_finish(r, true, &err), DW_INVALID);
    assert_int_equal(dw_target_apply(r, NULL), DW_OK);
    assert_int_equal(dw_target_discard(r, &err), DW_INVALID);
    assert_string_equal(err.text, "version 42 is prepared: apply and finish it first");
    assert_int_equal(stage(r, &goal, &err), DW_INVALID);
    dw_target_close(r); /* and not finished: the next one does it */
    assert_true(disk_has_patch(&disk));
    bool recovered;
    assert_int_equal(dw_target_open_checkpoint(&r, disk.path, 1, false, &recovered, NULL),
                     DW_OK);
    assert_true(recovered && disk_is_new(&disk) && disk_is_tidy(&disk) &&
                !disk_has_patch(&disk));
    dw_target_close(r);
    drop();
}

TEST(test_one_holder)
{
    make(true, 50);
    dw_error err;
    dw_target *r = hold(), *second = (dw_target *)1;
    assert_int_equal(
        dw_target_open_checkpoint(&second, disk.files[1], 1, false, NULL, &err),
        DW_CONFLICT);
    assert_null(second);
    assert_int_equal(dw_checkpoint_apply(disk.path, disk.delta, NULL, NULL, &err),
                     DW_CONFLICT);
    dw_target_close(r);
    assert_int_equal(dw_checkpoint_apply(disk.path, disk.delta, NULL, NULL, &err), DW_OK);
    assert_int_equal(
        dw_target_open_checkpoint(&second, temp_path("nothing"), 1, false, NULL, &err),
        DW_NOT_FOUND);
    assert_null(second);
    drop();
}

/* A version that a killed holder left staged is dropped by the next one. */
/* A run was interrupted, and then somebody gave the file a second name: the file of the
 * other name does not change. */
TEST(test_linked_meanwhile)
{
    make(0, 3000);
    dw_target *r = hold();
    assert_int_equal(stage(r, &goal, NULL), DW_OK);
    assert_int_equal(dw_target_prepare(r, NULL), DW_OK);
    dw_target_close(r);
    const char *other = temp_path("other-name");
    assert_int_equal(link(disk.path, other), 0);
    size_t n, n_after;
    uint8_t *before = get_file(other, &n);
    bool recovered;
    dw_error err = {0};
    assert_int_equal(dw_target_open_checkpoint(&r, disk.path, 0, false, &recovered, &err),
                     DW_OK);
    assert_true(recovered && disk_is_new(&disk) && !disk_has_patch(&disk));
    dw_target_close(r);
    uint8_t *after = get_file(other, &n_after);
    assert_int_equal(n, n_after);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
    unlink(other);
    drop();
}

TEST(test_leftovers)
{
    make(true, 50);
    char staged[400], temporary[440];
    snprintf(staged, sizeof staged, "%s/.deltawire/staged", disk.dir);
    snprintf(temporary, sizeof temporary, "%s.tmp-1-0", staged);
    for (int by_recover = 0; by_recover < 2; by_recover++) {
        disk_make_own_dir(&disk);
        put_text(staged, "half");
        put_text(temporary, "half");
        if (by_recover)
            assert_int_equal(dw_checkpoint_recover(disk.path, 1, NULL, NULL), DW_OK);
        else
            dw_target_close(hold());
        assert_true(disk_is_old(&disk) && disk_is_tidy(&disk));
    }
    drop();
}

/* Something else wrote to the weights: found before the patch is removed. */
TEST(test_finish_finds)
{
    for (int sweep = 0; sweep < 2; sweep++) {
        make(false, 300);
        dw_error err;
        size_t n;
        dw_target *r = hold();
        const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n);
        assert_int_equal(stage(r, &goal, NULL), DW_OK);
        assert_int_equal(dw_target_apply(r, NULL), DW_OK);
        /* with SWEEP an element that did not change; else the first that did */
        uint8_t *at = tensors[0].data;
        const uint8_t *old = disk.old_model.tensors[0].data;
        size_t i = 0;
        while ((at[i] == old[i]) != sweep)
            i++;
        at[i] ^= 0x80;
        assert_int_equal(dw_target_finish(r, sweep, &err), DW_CORRUPT);
        assert_string_equal(err.where, disk.path);
        assert_non_null(strstr(err.text, sweep ? "the checkpoint is not version 42"
                                               : "does not hold what was stored"));
        assert_true(disk_has_patch(&disk));
        at[i] ^= 0x80;
        assert_int_equal(dw_target_finish(r, sweep, &err), DW_OK);
        dw_target_close(r);
        assert_true(disk_is_new(&disk) && disk_is_tidy(&disk));
        drop();
    }
}

/* A version may cover less than the model. */
TEST(test_some_parts)
{
    make(false, 300);
    dw_error err;
    dw_target *r = hold();
    const dw_patch_goal none = {.version = 42};
    for (size_t i = 0; i < CUT_PARTS; i++) {
        assert_int_equal(
            dw_target_stage_parts(r, &two_versions.list[i], 1, &none, NULL, &err), DW_OK);
        assert_int_equal(dw_target_apply(r, NULL), DW_OK);
        assert_int_equal(dw_target_finish(r, true, NULL), DW_OK);
    }
    dw_target_close(r);
    assert_true(disk_is_new(&disk) && disk_is_tidy(&disk));
    drop();
}

static dw_status run_all(dw_error *err)
{
    dw_target *r;
    disk_reset(&disk);
    dw_status status = dw_target_open_checkpoint(&r, disk.path, 1, false, NULL, err);
    if (status == DW_OK)
        status = stage(r, &goal, err);
    if (status == DW_OK)
        status = dw_target_apply(r, err);
    if (status == DW_OK)
        status = dw_target_finish(r, true, err);
    dw_target_close(r);
    return status;
}

static void check_whole(void)
{
    assert_true(disk_is_tidy(&disk));
    assert_true(disk_is_old(&disk) || disk_is_new(&disk) || disk_has_patch(&disk));
    bool recovered, has_patch = disk_has_patch(&disk);
    assert_int_equal(dw_checkpoint_recover(disk.path, 1, &recovered, NULL), DW_OK);
    assert_int_equal(recovered, has_patch);
    assert_true(disk_is_old(&disk) || disk_is_new(&disk));
}

TEST(test_no_memory)
{
    make(true, 40);
    fail_every_allocation(run_all, check_whole);
    assert_true(disk_is_new(&disk) && disk_is_tidy(&disk));
    drop();
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
