/* Memory in F32 follows a stream in BF16. */
#include "follow/follower.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

/* Models are unaligned on purpose. */
static uint32_t wide_at(const dw_tensor *t, size_t i)
{
    uint32_t bits;
    memcpy(&bits, (const uint8_t *)t->data + 4 * i, sizeof bits);
    return bits;
}

static uint16_t narrow_at(const dw_tensor *t, size_t i)
{
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)t->data + 2 * i, sizeof bits);
    return bits;
}

static void flip(const dw_tensor *t, size_t i, unsigned bit)
{
    const uint32_t bits = wide_at(t, i) ^ (uint32_t)1 << bit;
    memcpy((uint8_t *)t->data + 4 * i, &bits, sizeof bits);
}

static model wide_model(dw_dtype dtype)
{
    model m = fixture_model();
    model w = model_new(m.n);
    for (size_t i = 0; i < m.n; i++) {
        const dw_tensor *t = &m.tensors[i];
        model_set(&w, i, t->name, t->dtype == DW_BF16 ? dtype : t->dtype, t->n_dims,
                  t->dims, 0);
        memset(w.tensors[i].data, 0, (size_t)w.tensors[i].n_bytes);
    }
    model_free(&m);
    return w;
}

/* Whether MEMORY is VERSION, bit by bit. */
static bool is_version(const fixture *x, const model *memory, uint64_t version)
{
    bool same = true;
    for (size_t i = 0; i < memory->n; i++) {
        const dw_tensor *m = &memory->tensors[i], *t = &x->at[version].tensors[i];
        assert_string_equal(m->name, t->name);
        if (m->dtype == t->dtype) {
            same = same && memcmp(m->data, t->data, (size_t)t->n_bytes) == 0;
            continue;
        }
        for (uint64_t k = 0; k < t->n_bytes / 2; k++)
            same = same && wide_at(m, k) == (uint32_t)narrow_at(t, k) << 16;
    }
    return same;
}

static dw_follow_options options_for(const model *memory)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = memory->tensors;
    options.n_tensors = memory->n;
    options.spool_dir = temp_path("");
    options.sweep_every = 4;
    options.widen = true;
    return options;
}

TEST(test_follows)
{
    for (int empty = 0; empty < 2; empty++) {
        fixture x;
        fixture_make(&x, empty ? "mem:widen-empty" : "mem:widen", 6, 4, 2);
        model memory = wide_model(DW_F32);
        dw_follow_options options = options_for(&memory);
        options.tensors_empty = empty;
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        for (uint64_t v = 0; v <= 6; v++) {
            assert_fine(&x, dw_follower_sync(f, v, NULL, NULL, &x.err));
            assert_int_equal(dw_follower_version(f), v);
            assert_true(is_version(&x, &memory, v));
        }
        assert_fine(&x, dw_follower_sync(f, 4, NULL, NULL, &x.err)); /* by an anchor */
        assert_true(is_version(&x, &memory, 4));
        dw_follower_close(f);

        /* existing weights are recognised */
        options.tensors_empty = false;
        options.at = 4;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_int_equal(dw_follower_version(f), 4);
        dw_follower_close(f);

        /* but not values of which only the upper halves are right */
        flip(&memory.tensors[0], 17, 0);
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
        assert_fine(&x, dw_follower_sync(f, 6, NULL, NULL, &x.err));
        assert_true(is_version(&x, &memory, 6));
        dw_follower_close(f);
        model_free(&memory);
        fixture_close(&x);
    }
}

/* No weight changes before a version is proven. */
TEST(test_proves_first)
{
    fixture x;
    fixture_make(&x, "mem:widen-proof", 2, 0, 0);
    char key[DW_KEY_TEXT];
    dw_writer bytes;
    fixture_object(&x, 2, key);
    fixture_get(&x, key, &bytes);
    bytes.bytes[bytes.n_bytes - 3] ^= 4;
    assert_fine(&x, dw_store_remove(x.store, key, &x.err));
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    model memory = wide_model(DW_F32);
    const dw_follow_options options = options_for(&memory);
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 1, NULL, NULL, &x.err));
    assert_int_equal(dw_follower_sync(f, 2, NULL, NULL, &x.err), DW_CORRUPT);
    assert_int_equal(dw_follower_version(f), 1);
    assert_true(is_version(&x, &memory, 1));
    dw_follower_close(f);
    model_free(&memory);
    fixture_close(&x);
}

/* Both halves of each element are compared. */
TEST(test_changed_memory)
{
    for (unsigned bit = 0; bit < 32; bit += 21) {
        fixture x;
        fixture_make(&x, bit ? "mem:widen-high" : "mem:widen-low", 12, 0, 0);
        model memory = wide_model(DW_F32);
        const dw_follow_options options = options_for(&memory);
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
        for (size_t i = 0; i < memory.tensors[0].n_bytes / 4; i++)
            flip(&memory.tensors[0], i, bit); /* also elements that the delta changes */
        /* the delta is refused, and the next route begins with an anchor */
        assert_int_equal(dw_follower_sync(f, 4, NULL, NULL, &x.err), DW_CORRUPT);
        assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
        assert_fine(&x, dw_follower_sync(f, 4, NULL, NULL, &x.err));
        assert_true(is_version(&x, &memory, 4));
        /* the sweep finds elements that deltas do not touch */
        size_t still = 0;
        bool moves = true;
        for (; moves; still++) {
            moves = false;
            for (uint64_t v = 5; v <= 8; v++)
                moves = moves || narrow_at(&x.at[4].tensors[0], still) !=
                                     narrow_at(&x.at[v].tensors[0], still);
            if (!moves)
                break;
        }
        flip(&memory.tensors[0], still, bit);
        dw_status status = DW_OK;
        for (uint64_t v = 5; status == DW_OK && v <= 8; v++)
            status = dw_follower_sync(f, v, NULL, NULL, &x.err);
        assert_int_equal(status, DW_CORRUPT);
        assert_non_null(strstr(x.err.text, "layer.weight"));
        assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
        assert_fine(&x, dw_follower_sync(f, 12, NULL, NULL, &x.err));
        assert_true(is_version(&x, &memory, 12));
        dw_follower_close(f);
        model_free(&memory);
        fixture_close(&x);
    }
}

TEST(test_refuses)
{
    fixture x;
    fixture_make(&x, "mem:widen-refused", 1, 0, 0);
    dw_follower *f;
    model half = wide_model(DW_F16);
    dw_follow_options options = options_for(&half);
    assert_int_equal(dw_follower_open(&f, x.store, &options, &x.err), DW_MISMATCH);
    assert_non_null(strstr(x.err.text, "the stream has it as BF16 [60,70], your model as "
                                       "F16 [60,70]"));
    model wide = wide_model(DW_F32);
    options = options_for(&wide);
    options.widen = false; /* only on request */
    assert_int_equal(dw_follower_open(&f, x.store, &options, &x.err), DW_MISMATCH);
    assert_non_null(strstr(x.err.text, "widen=True"));
    options.widen = true;
    options.tensors = NULL;
    options.into = temp_path("into");
    assert_int_equal(dw_follower_open(&f, x.store, &options, &x.err), DW_INVALID);
    model_free(&half);
    model_free(&wide);
    fixture_close(&x);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
