/* Bits flip in the baseline of a running publisher. The damage is found within
 * `sweep_every` versions, repaired from the stream and recorded; folds, anchors and
 * collections do not use it. */
/* labels: threads */
#include "publish/publisher.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

#define EVERY 4

static void open_fixture(fixture *x, const char *url, const char *dir, unsigned fold,
                         unsigned anchor_every)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = fold;
    options.anchor_every = anchor_every;
    options.anchor_factor = 0;
    options.sweep_every = EVERY;
    options.max_object_bytes = 4096; /* many pieces */
    options.baseline_dir = dir;
    options.spool_dir = temp_dir;
    fixture_open(x, url, &options);
}

/* The live weights do not change. */
static void publish_same(fixture *x)
{
    uint64_t ticket;
    dw_publish_report report;
    assert_fine(x, dw_publisher_publish(x->publisher, &ticket, NULL, &x->err));
    assert_fine(
        x, dw_publisher_wait(x->publisher, ticket, UINT_MAX, NULL, &report, &x->err));
    assert_fine(x, dw_publisher_drain(x->publisher, &x->err));
    assert_int_equal(report.version, x->n);
    x->at[x->n++] = model_copy(&x->live, false);
}

static dw_tensor *tensor_of(model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

/* The first byte of the biases in the baseline. */
static uint8_t *baseline_byte(fixture *x)
{
    for (size_t i = 0; i < x->publisher->pieces.n_table; i++)
        if (strcmp(x->publisher->pieces.table[i].name, "bias") == 0)
            return x->publisher->baseline.data[i];
    return NULL;
}

static dw_version_info version_of(fixture *x, dw_stream **s, uint64_t version)
{
    dw_version_info info;
    assert_fine(x, dw_stream_open(s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_version(*s, version, &info, &x->err));
    return info;
}

static void assert_suspect(fixture *x, uint64_t version, uint64_t from)
{
    dw_stream *s;
    assert_int_equal(version_of(x, &s, version).suspect_from, from);
    dw_stream_close(s);
}

static void assert_head_is_live(fixture *x)
{
    dw_follow_report report;
    dw_verify_report found;
    assert_fine(x, fixture_pull(x, x->store, x->n - 1, &report));
    fixture_verify(x, x->store, &found);
}

/* A flipped bit makes the next delta lead followers elsewhere. IN_DIR: through the file.
 */
static void rot_and_change(const char *url, const char *dir)
{
    fixture x;
    dw_verify_report found;
    open_fixture(&x, url, dir, 0, 0);
    for (int i = 0; i < 5; i++)
        fixture_publish(&x); /* all is proven once, at different versions */
    *baseline_byte(&x) ^= 1;
    /* each version changes the damaged element: followers get wrong weights until it is
     * found */
    uint64_t repaired = 0;
    for (int i = 0; i < EVERY + 1; i++) {
        ((uint8_t *)tensor_of(&x.live, "bias")->data)[0] ^= 4;
        publish_same(&x);
        dw_stream *s;
        if (version_of(&x, &s, x.n - 1).suspect_from > 0)
            repaired = x.n - 1;
        dw_stream_close(s);
    }
    assert_in_range(repaired, 6, 6 + EVERY);
    dw_stream *s;
    const uint64_t from = version_of(&x, &s, repaired).suspect_from;
    dw_stream_close(s);
    assert_in_range(from, 2,
                    6); /* the version at which the piece was last proven, plus one */
    assert_head_is_live(&x);
    fixture_verify(&x, x.store, &found);
    assert_int_equal(found.suspect_from, from);
    assert_int_equal(found.suspect_end, repaired);
    for (int i = 0; i < 3; i++)
        fixture_publish(&x);
    assert_suspect(&x, x.n - 1, 0);
    assert_head_is_live(&x);
    fixture_close(&x);
}

TEST(test_change_is_wrong)
{
    rot_and_change("mem:rot-change", NULL);
    rot_and_change("mem:rot-change-dir", temp_path("change"));
}

/* The flipped bit hides a change of the trainer, so it is never sent. */
TEST(test_change_is_hidden)
{
    fixture x;
    open_fixture(&x, "mem:rot-hidden", temp_path("hidden"), 0, 0);
    fixture_publish(&x);
    *baseline_byte(&x) ^= 1;
    ((uint8_t *)tensor_of(&x.live, "bias")->data)[0] ^= 1;
    for (int i = 0; i < EVERY + 1; i++)
        publish_same(&x);
    assert_head_is_live(&x);
    dw_verify_report found;
    fixture_verify(&x, x.store, &found);
    assert_int_equal(found.suspect_from, 2);
    fixture_close(&x);
}

/* ---- collections ---- */

static dw_status collect(fixture *x, dw_store *store, bool dry_run,
                         dw_collect_report *report)
{
    dw_stream *s;
    const dw_collect_options options = {
        .struct_bytes = sizeof options, .n_keep = 1, .dry_run = dry_run};
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    dw_status status = dw_stream_collect(s, &options, report, &x->err);
    dw_stream_close(s);
    return status;
}

/* Gives the anchor of VERSION other weights, as a damaged baseline did in 0.1. Hash and
 * size agree with the record. */
static void rot_anchor(fixture *x, dw_store *store, uint64_t version)
{
    dw_stream *s;
    dw_commit_record c;
    dw_slices all = {0};
    dw_objects objects = {0};
    char key[DW_KEY_TEXT];
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    assert_fine(x, dw_stream_read_commit(s, version, &c, &x->err));
    const dw_stream_record *r = &s->record;
    dw_key_shortcut(key, version, DW_NO_VERSION);
    assert_fine(x, dw_store_remove(store, key, &x->err));
    void *data[8];
    dw_tensor tensors[8];
    dw_digest digests[8], state;
    for (size_t i = 0; i < r->n_tensors; i++) {
        tensors[i] = r->tensors[i];
        tensors[i].data = data[i] = tensor_of(&x->at[version], r->tensors[i].name)->data;
    }
    uint8_t *byte = tensor_of(&x->at[version], "bias")->data;
    *byte ^= 1;
    assert_fine(
        x, dw_digest_tensors(digests, &state, tensors, r->n_tensors, 1, NULL, &x->err));
    assert_fine(x, dw_slices_of_covers(&all, NULL, 0, r->tensors, r->n_tensors, &x->err));
    dw_anchor_spec spec = {
        .store = store,
        .table = r->tensors,
        .n_table = r->n_tensors,
        .slices = &all,
        .data = data,
        .share = dw_whole_share(r->tensors, r->n_tensors, c.state),
        .version = version,
        .is_shortcut = true,
        .write_id = "00112233445566778899aabbccddeeff",
        .max_object_bytes = 1 << 20,
    };
    /* the upload is proven: no publisher makes such an anchor */
    assert_int_equal(dw_anchor_upload(&objects, &spec, &x->err), DW_CORRUPT);
    assert_int_equal(dw_store_stat(store, objects.items[0].key, NULL, NULL, NULL),
                     DW_NOT_FOUND);
    dw_objects_release(&objects);
    spec.share = dw_whole_share(r->tensors, r->n_tensors, state);
    assert_fine(x, dw_anchor_upload(&objects, &spec, &x->err));
    *byte ^= 1;
    const dw_position to = dw_position_of(&c);
    assert_fine(x, dw_shortcut_create(s, NULL, &to, &objects, NULL, &x->err));
    dw_objects_release(&objects);
    dw_slices_free(&all);
    dw_commit_record_release(&c);
    dw_stream_close(s);
}

/* An object of the anchor of VERSION gets another byte. */
static void damage_anchor(fixture *x, dw_store *store, uint64_t version)
{
    dw_stream *s;
    dw_shortcut_record shortcut;
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    assert_fine(x,
                dw_stream_read_shortcut(s, version, DW_NO_VERSION, &shortcut, &x->err));
    dw_writer bytes = {0};
    const char *key = shortcut.objects.items[0].key;
    assert_fine(x, dw_store_get_all(store, key, 1u << 30, &bytes, &x->err));
    bytes.bytes[bytes.n_bytes - 5] ^= 1;
    assert_fine(x, dw_store_put_bytes(store, key, bytes.bytes, bytes.n_bytes,
                                      DW_PUT_REPLACE, &x->err));
    dw_writer_release(&bytes);
    dw_shortcut_record_release(&shortcut);
    dw_stream_close(s);
}

TEST(test_collect)
{
    fixture x;
    fixture_make(&x, "mem:rot-collect", 8, 4, 0); /* anchors at 4 and 8 */
    void (*const spoil[])(fixture *, dw_store *, uint64_t) = {rot_anchor, damage_anchor};
    for (int i = 0; i < 2; i++) {
        dw_collect_report report;
        dw_follow_report pulled;
        dw_store *store = fixture_clone(&x);
        spoil[i](&x, store, 8);
        /* the older anchor is used */
        assert_fine(&x, collect(&x, store, true, &report));
        assert_int_equal(report.floor, 4);
        assert_int_equal(report.bad_anchor, 8);
        assert_fine(&x, collect(&x, store, false, &report));
        assert_int_equal(report.floor, 4);
        assert_fine(&x, fixture_pull(&x, store, 8, &pulled));
        dw_store_close(store);
        /* no anchor is good: nothing is removed */
        store = fixture_clone(&x);
        spoil[i](&x, store, 4);
        spoil[i](&x, store, 8);
        const size_t before = fixture_count(&x, store, "");
        assert_int_equal(collect(&x, store, false, &report), DW_CORRUPT);
        assert_non_null(strstr(x.err.text, "nothing was removed"));
        assert_int_equal(fixture_count(&x, store, ""), before);
        assert_fine(&x, fixture_pull(&x, store, 8, &pulled));
        dw_store_close(store);
    }
    fixture_close(&x);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
