/* Quantised publish: what followers get is what a plain quantiser makes of the trainer's
 * weights. */
/* labels: threads */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

/* ---- the trainer's model ---- */

enum { EMBED, STACK, LARGE, MASTER, NORM, N_SOURCE };

static const char *const names[N_SOURCE] = {
    "model.embed_tokens.weight",
    "model.layers.0.mlp.experts.down_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.norm.weight",
};
static const uint64_t dims[N_SOURCE][3] = {[EMBED] = {40, 24},
                                           [STACK] = {3, 130, 70},
                                           [LARGE] = {1500, 700},
                                           [MASTER] = {257, 129},
                                           [NORM] = {70}};
static const uint32_t n_dims[N_SOURCE] = {2, 3, 2, 2, 1};

typedef struct trainer {
    dw_tensor tensors[N_SOURCE];
    uint64_t n[N_SOURCE];
    bool as_bf16[N_SOURCE];
} trainer;

static float as_float(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static uint16_t as_bf16(float x)
{
    uint16_t out;
    dw_cast_bf16(&out, &x, 1);
    return out;
}

static float draw(void)
{
    return ((float)random_below(2000001) - 1000000) * 1e-6f *
           (random_below(50) ? 1e-3f : 1.0f);
}

static void set(trainer *m, size_t t, uint64_t i, float x)
{
    if (m->tensors[t].dtype == DW_F32)
        ((float *)m->tensors[t].data)[i] = x;
    else
        ((uint16_t *)m->tensors[t].data)[i] = as_bf16(x);
}

static void trainer_make(trainer *m)
{
    *m = (trainer){.as_bf16 = {[MASTER] = true}};
    for (size_t t = 0; t < N_SOURCE; t++) {
        const dw_dtype dtype = t == MASTER ? DW_F32 : DW_BF16;
        uint64_t n_bytes;
        assert_true(dw_shape_size(dtype, n_dims[t], dims[t], &m->n[t], &n_bytes));
        m->tensors[t] = (dw_tensor){
            names[t], dtype, n_dims[t], dims[t], n_bytes, calloc(1, n_bytes), 0};
        for (uint64_t i = 0; i < m->n[t]; i++)
            set(m, t, i, draw());
    }
    /* a block without any weight but zeros, and one with tiny ones */
    for (uint64_t i = 0; i < 128; i++)
        for (uint64_t k = 0; k < 128; k++) {
            set(m, LARGE, i * 700 + k, 0);
            set(m, LARGE, i * 700 + 128 + k, 1e-40f);
        }
}

static void trainer_free(trainer *m)
{
    for (size_t t = 0; t < N_SOURCE; t++)
        free(m->tensors[t].data);
}

static void trainer_step(trainer *m, unsigned per_mille)
{
    for (size_t t = 0; t < N_SOURCE; t++)
        for (uint64_t i = 0; i < m->n[t]; i++)
            if (random_below(1000) < per_mille)
                set(m, t, i, draw());
}

/* ---- a plain quantiser ---- */

static float fp8_value(unsigned code)
{
    const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    float size = (float)(exponent ? 8 + fraction : fraction) / 512; /* 2^-9 */
    for (int i = 1; i < exponent; i++)
        size *= 2;
    return code & 128 ? -size : size;
}

/* To the nearest integer, halfway to even, for small numbers. */
static float nearest(float x)
{
    const volatile float sum = x + 0x1.8p23f;
    return sum - 0x1.8p23f;
}

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* The nearest of all values; of two, the one with an even code. */
static uint8_t to_fp8(float x)
{
    unsigned low = 0, high = 126; /* 127 is NaN; values ascend with their codes */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (fp8_value(middle) <= fabsf(x))
            low = middle;
        else
            high = middle;
    }
    const float below = fabsf(x) - fp8_value(low), above = fp8_value(high) - fabsf(x);
    const bool up = above < below || (above == below && high % 2 == 0);
    return (uint8_t)((up ? high : low) | (signbit(x) ? 128 : 0));
}

typedef struct expected {
    uint8_t *weights;
    float *scales;
    uint64_t n_scales;
} expected;

static float source(const trainer *m, size_t t, uint64_t i, bool from_f32)
{
    if (m->tensors[t].dtype != DW_F32)
        return as_float(((const uint16_t *)m->tensors[t].data)[i]);
    const float x = ((const float *)m->tensors[t].data)[i];
    return from_f32 ? x : as_float(as_bf16(x));
}

static expected quantise(const trainer *m, size_t t, const dw_quant_options *o)
{
    const bool block = o->scheme == DW_QUANT_FP8_BLOCK,
               fp8 = o->scheme != DW_QUANT_INT8_ROW;
    const uint64_t cols = dims[t][n_dims[t] - 1], rows = dims[t][n_dims[t] - 2];
    const uint64_t stack = n_dims[t] == 3 ? dims[t][0] : 1;
    const uint64_t high = block ? 128 : 1, wide = block ? 128 : cols;
    expected out = {malloc(m->n[t]), malloc((stack * rows * 2 + 8) * 4 * 8), 0};
    for (uint64_t s = 0; s < stack; s++)
        for (uint64_t r = 0; r < rows; r += high)
            for (uint64_t c = 0; c < cols; c += wide) {
                const uint64_t r1 = r + high < rows ? r + high : rows;
                const uint64_t c1 = c + wide < cols ? c + wide : cols;
                float most = 0;
                for (uint64_t i = r; i < r1; i++)
                    for (uint64_t k = c; k < c1; k++)
                        most = larger(most, fabsf(source(m, t, (s * rows + i) * cols + k,
                                                         o->from_f32)));
                float scale = most / (fp8 ? 448.0f : 127.0f);
                scale = most == 0 ? 1 : larger(scale, 0x1p-126f);
                out.scales[out.n_scales++] = scale;
                for (uint64_t i = r; i < r1; i++)
                    for (uint64_t k = c; k < c1; k++) {
                        const uint64_t at = (s * rows + i) * cols + k;
                        const float x = source(m, t, at, o->from_f32) / scale;
                        out.weights[at] = fp8 ? to_fp8(x) : (uint8_t)(int8_t)nearest(x);
                    }
            }
    return out;
}

/* ---- a follower ---- */

/* A directory that does not exist yet. */
static const char *fresh_path(const char *name)
{
    static unsigned n;
    char text[64];
    snprintf(text, sizeof text, "%s-%u", name, n++);
    return temp_path(text);
}

static const dw_tensor *find(const dw_tensor *tensors, size_t n, const char *name,
                             const char *suffix)
{
    char text[128];
    snprintf(text, sizeof text, "%s%s", name, suffix);
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, text) == 0)
            return &tensors[i];
    fail_msg("no tensor %s", text);
    return NULL;
}

static void check(const trainer *m, dw_store *store, const dw_quant_options *o)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = fresh_path("pulled");
    dw_error err = {0};
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    size_t n;
    const dw_tensor *got = dw_follower_tensors(f, &n);
    assert_int_equal(n, N_SOURCE + 3);
    const char *suffix = o->scheme == DW_QUANT_FP8_BLOCK ? "_scale_inv" : "_scale";
    for (size_t t = 0; t < N_SOURCE; t++) {
        const dw_tensor *weight = find(got, n, names[t], "");
        if (t == EMBED || t == NORM) {
            assert_int_equal(weight->dtype, DW_BF16);
            assert_memory_equal(weight->data, m->tensors[t].data, weight->n_bytes);
            continue;
        }
        expected e = quantise(m, t, o);
        const dw_tensor *scale = find(got, n, names[t], suffix);
        assert_int_equal(weight->dtype,
                         o->scheme == DW_QUANT_INT8_ROW ? DW_I8 : DW_F8_E4M3);
        assert_int_equal(scale->n_bytes, e.n_scales * 4);
        assert_memory_equal(scale->data, e.scales, scale->n_bytes);
        assert_int_equal(weight->n_bytes, m->n[t]);
        assert_memory_equal(weight->data, e.weights, weight->n_bytes);
        free(e.weights);
        free(e.scales);
    }
    dw_follower_close(f);
}

/* ---- the publisher ---- */

static dw_quant_options quant_options(dw_quant_scheme scheme, bool from_f32)
{
    dw_quant_options o;
    dw_quant_options_init(&o);
    o.scheme = scheme;
    o.from_f32 = from_f32;
    return o;
}

static dw_publish_options options_of(const trainer *m, const dw_quant_options *quant)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    memset(options.folds, 0, sizeof options.folds);
    options.anchor_factor = 0;
    options.spool_dir = temp_dir;
    options.n_threads = 2;
    options.as_bf16 = m->as_bf16;
    options.quantize = quant;
    options.max_object_bytes = 100000; /* several pieces for each tensor */
    return options;
}

static dw_publisher *open_trainer(trainer *m, dw_store *store,
                                  const dw_publish_options *options)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, m->tensors, N_SOURCE, options, &err), &err);
    return p;
}

static dw_status try_publish(dw_publisher *p, const bool *unchanged,
                             dw_publish_report *report, dw_error *err)
{
    uint64_t ticket;
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.unchanged = unchanged;
    assert_ok(dw_publisher_publish(p, &ticket, &note, err), err);
    return dw_publisher_wait(p, ticket, UINT_MAX, NULL, report, err);
}

static dw_publish_report publish(dw_publisher *p, const bool *unchanged)
{
    dw_error err = {0};
    dw_publish_report report;
    assert_ok(try_publish(p, unchanged, &report, &err), &err);
    return report;
}

static bool is_current(dw_publisher *p)
{
    dw_error err = {0};
    bool current;
    assert_ok(dw_publisher_is_current(p, &current, &err), &err);
    return current;
}

static dw_digest state_of(dw_publisher *p)
{
    dw_error err = {0};
    dw_digest found = 0;
    assert_ok(dw_publisher_state(p, &found, &err), &err);
    return found;
}

static void run(dw_quant_scheme scheme, bool from_f32, bool in_dir)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(scheme, from_f32);
    dw_publish_options options = options_of(&m, &quant);
    options.folds[0] = 2;
    options.anchor_every = 3;
    if (in_dir)
        options.baseline_dir = fresh_path("baseline");
    static const unsigned steps[] = {0, 1, 10, 1000};
    dw_publisher *p = open_trainer(&m, store, &options);
    check(&m, store, &quant);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        trainer_step(&m, steps[i]);
        if (i == 2) {
            dw_publisher_close(p);
            p = open_trainer(&m, store, &options);
            assert_false(is_current(p));
        }
        const dw_digest wanted = state_of(p);
        const dw_publish_report report = publish(p, NULL);
        assert_int_equal(report.unchanged, steps[i] == 0);
        assert_true(report.state == wanted);
        assert_true(is_current(p));
        check(&m, store, &quant);
    }
    dw_error err = {0};
    assert_ok(dw_publisher_drain(p, &err), &err);
    dw_publisher_close(p);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

static void test_fp8_block(void **state)
{
    (void)state;
    run(DW_QUANT_FP8_BLOCK, false, false);
    run(DW_QUANT_FP8_BLOCK, true, true);
}

static void test_fp8_row(void **state)
{
    (void)state;
    run(DW_QUANT_FP8_ROW, true, false);
    run(DW_QUANT_FP8_ROW, false, true);
}

static void test_int8_row(void **state)
{
    (void)state;
    run(DW_QUANT_INT8_ROW, false, false);
    run(DW_QUANT_INT8_ROW, true, true);
}

/* A tensor that the caller declares unchanged is not read, nor are its scales made. */
static void test_unchanged(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    const dw_publish_options options = options_of(&m, &quant);
    dw_publisher *p = open_trainer(&m, store, &options);
    const bool large[N_SOURCE] = {[LARGE] = true};
    publish(p, NULL);
    trainer_step(&m, 10);
    uint16_t *now = malloc(m.tensors[LARGE].n_bytes), *at = m.tensors[LARGE].data;
    memcpy(now, at, m.tensors[LARGE].n_bytes);
    at[5] = 0x7fc0; /* nobody sees this NaN */
    publish(p, large);
    memcpy(at, now, m.tensors[LARGE].n_bytes);
    publish(p, NULL);
    check(&m, store, &quant);
    free(now);
    dw_publisher_close(p);
    dw_store_close(store);
    trainer_free(&m);
}

/* Weights that are not finite cannot be quantised. Nothing is published, and the next
 * publish covers it. */
static void test_not_finite(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    const dw_publish_options options = options_of(&m, &quant);
    dw_publisher *p;
    dw_error err = {0};
    uint16_t *at = m.tensors[LARGE].data;
    static const uint16_t bad[] = {0x7fc0, 0x7f80, 0xff80};
    const uint16_t good = at[700 * 1000 + 3];
    at[700 * 1000 + 3] = 0x7f80;
    assert_fails(dw_publisher_open(&p, store, m.tensors, N_SOURCE, &options, &err),
                 DW_NOT_FINITE, &err);
    assert_non_null(strstr(err.text, names[LARGE]));
    at[700 * 1000 + 3] = good;
    p = open_trainer(&m, store, &options);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        trainer_step(&m, 5);
        const uint16_t kept = at[700 * 1000 + 3];
        at[700 * 1000 + 3] = bad[i];
        err = (dw_error){0};
        assert_fails(try_publish(p, NULL, NULL, &err), DW_NOT_FINITE, &err);
        assert_non_null(strstr(err.text, names[LARGE]));
        assert_int_equal(dw_publisher_version(p), i);
        at[700 * 1000 + 3] = kept;
        assert_int_equal(publish(p, NULL).version, i + 1);
        check(&m, store, &quant);
    }
    dw_publisher_close(p);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

static void expect_refused(trainer *m, dw_store *store, const dw_publish_options *options,
                           dw_status status, const char *text)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_fails(dw_publisher_open(&p, store, m->tensors, N_SOURCE, options, &err),
                 status, &err);
    if (!strstr(err.text, text))
        fail_msg("'%s' is not in: %s", text, err.text);
}

static void test_refused(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    dw_publish_options options = options_of(&m, &quant);
    options.first = DW_FIRST_BASE;
    expect_refused(&m, store, &options, DW_INVALID, "base");
    options.first = DW_FIRST_ANCHOR;
    /* a shard that ends inside a block, and one that ends inside a row */
    dw_store *other = kit_mem_store();
    dw_shard shard = {LARGE, 0, 100 * 700, m.tensors[LARGE].data};
    options.shards = &shard;
    options.n_shards = 1;
    expect_refused(&m, other, &options, DW_UNSUPPORTED, names[LARGE]);
    quant.scheme = DW_QUANT_FP8_ROW;
    shard.n_elems++;
    dw_store *third = kit_mem_store();
    expect_refused(&m, third, &options, DW_UNSUPPORTED, names[LARGE]);
    quant.scheme = DW_QUANT_FP8_BLOCK;
    dw_store_close(other);
    dw_store_close(third);
    options.shards = NULL;
    options.n_shards = 0;
    dw_publisher_close(open_trainer(&m, store, &options));

    /* another scheme, none, another rounding, another choice of tensors */
    quant.scheme = DW_QUANT_INT8_ROW;
    expect_refused(&m, store, &options, DW_MISMATCH, "quantised as fp8-block");
    options.quantize = NULL;
    expect_refused(&m, store, &options, DW_MISMATCH, "unquantised");
    options.quantize = &quant;
    quant = quant_options(DW_QUANT_FP8_BLOCK, true);
    expect_refused(&m, store, &options, DW_MISMATCH, "from_f32");
    quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    static const char *const keep[] = {"*.up_proj.weight"};
    quant.keep = keep;
    quant.n_keep = 1;
    expect_refused(&m, store, &options, DW_MISMATCH, "");
    quant.n_keep = 0;
    dw_publisher_close(open_trainer(&m, store, &options));
    check(&m, store, &quant);

    dw_error err = {0};
    dw_stream *stream;
    const char *rounded;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_string_equal(dw_stream_quantization(stream, &rounded), "fp8-block");
    assert_string_equal(rounded, "bf16");
    dw_stream_close(stream);
    dw_store_close(store);
    trainer_free(&m);
}

/* ---- ranks ---- */

typedef struct rank {
    trainer *m;
    dw_store *store;
    dw_publish_options options;
    dw_shard shards[2 * N_SOURCE];
    dw_publisher *p;
    dw_publish_report report;
    dw_error err;
    dw_status status;
} rank;

static void *open_rank(void *context)
{
    rank *r = context;
    r->status =
        dw_publisher_open(&r->p, r->store, r->m->tensors, N_SOURCE, &r->options, &r->err);
    return NULL;
}

static void *publish_rank(void *context)
{
    rank *r = context;
    uint64_t ticket;
    r->status = dw_publisher_publish(r->p, &ticket, NULL, &r->err);
    if (r->status == DW_OK)
        r->status = dw_publisher_wait(r->p, ticket, UINT_MAX, NULL, &r->report, &r->err);
    return NULL;
}

/* Both ranks at once. */
static void together(rank ranks[2], void *(*fn)(void *))
{
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, fn, &ranks[1]), 0);
    fn(&ranks[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < 2; i++)
        assert_ok(ranks[i].status, &ranks[i].err);
}

/* Two ranks, which split the tensors where rows, or blocks of rows, end. */
static void run_ranks(dw_quant_scheme scheme)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(scheme, false);
    static const uint64_t block_rows[N_SOURCE] = {7, 130 + 128, 640, 128, 1},
                          free_rows[N_SOURCE] = {7, 200, 701, 255, 69};
    const uint64_t *rows = scheme == DW_QUANT_FP8_BLOCK ? block_rows : free_rows;
    for (int start = 0; start < 2; start++) {
        rank ranks[2];
        for (uint32_t i = 0; i < 2; i++) {
            ranks[i] = (rank){.m = &m, .store = store, .options = options_of(&m, &quant)};
            dw_publish_options *o = &ranks[i].options;
            o->rank = i;
            o->n_ranks = 2;
            o->job = start ? "second" : "first";
            o->n_shards = N_SOURCE;
            for (size_t t = 0; t < N_SOURCE; t++) {
                const uint64_t width = n_dims[t] == 1 ? 1 : dims[t][n_dims[t] - 1];
                const uint64_t cut = rows[t] * width, first = i == 0 ? 0 : cut;
                const unsigned size = m.tensors[t].dtype == DW_F32 ? 4 : 2;
                ranks[i].shards[t] =
                    (dw_shard){t, first, i == 0 ? cut : m.n[t] - cut,
                               (uint8_t *)m.tensors[t].data + first * size};
            }
        }
        for (int i = 0; i < 2; i++)
            ranks[i].options.shards = ranks[i].shards;
        together(ranks, open_rank);
        check(&m, store, &quant);
        for (unsigned i = 0; i < 2; i++) {
            trainer_step(&m, i == 0 ? 10 : 1000);
            together(ranks, publish_rank);
            check(&m, store, &quant);
        }
        for (int i = 0; i < 2; i++)
            dw_publisher_close(ranks[i].p);
    }
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

static void test_ranks(void **state)
{
    (void)state;
    run_ranks(DW_QUANT_FP8_BLOCK);
    run_ranks(DW_QUANT_FP8_ROW);
    run_ranks(DW_QUANT_INT8_ROW);
}

/* ---- companion files ---- */

/* The text of config.json of the newest version. */
static char *read_config(dw_store *store)
{
    dw_error err = {0};
    dw_stream *stream;
    uint64_t head, n;
    const void *bytes;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_ok(dw_stream_read_file(stream, head, "config.json", &bytes, &n, &err), &err);
    char *text = calloc(1, n + 1);
    memcpy(text, bytes, n);
    dw_stream_close(stream);
    return text;
}

static void expect_config(dw_store *store, const char *a, const char *b)
{
    char *text = read_config(store);
    if (!strstr(text, a) || !strstr(text, b))
        fail_msg("not '%s' and '%s': %s", a, b, text);
    free(text);
}

/* config.json says how the weights are quantised. A wrong one is refused, and nothing is
 * published. */
static void test_config(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    dw_publish_options options = options_of(&m, &quant);
    static const char good[] = "{\"model_type\": \"qwen3\"}";
    static const char next[] = "{\"model_type\": \"qwen4\"}";
    static const char *const bad[] = {
        "", "not JSON", "[1]",
        "{\"model_type\": ", "{\"quantization_config\": {\"quant_method\": \"gptq\"}}"};
    dw_file files[] = {{"config.json", bad[1], strlen(bad[1])},
                       {"tokenizer.json", "not JSON either", 15}};
    options.files = files;
    options.n_files = 2;
    options.has_files = true;
    expect_refused(&m, store, &options, DW_INVALID, "JSON");
    files[0] = (dw_file){"config.json", good, sizeof good - 1};
    dw_publisher *p = open_trainer(&m, store, &options);
    expect_config(store, "\"qwen3\"", "weight_block_size");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_error err = {0};
        uint64_t ticket;
        dw_publish_note note;
        dw_publish_note_init(&note);
        files[0] = (dw_file){"config.json", bad[i], strlen(bad[i])};
        note.files = files;
        note.n_files = 2;
        note.has_files = true;
        assert_fails(dw_publisher_publish(p, &ticket, &note, &err), DW_INVALID, &err);
        if (!strstr(err.text, "config.json") && !strstr(err.where, "config.json"))
            fail_msg("does not name the file: %s: %s", err.where, err.text);
    }
    trainer_step(&m, 1);
    assert_int_equal(publish(p, NULL).version, 1); /* with the files of version 0 */
    expect_config(store, "\"qwen3\"", "weight_block_size");
    dw_publish_note note;
    dw_publish_note_init(&note);
    files[0] = (dw_file){"config.json", next, sizeof next - 1};
    note.files = files;
    note.n_files = 1;
    note.has_files = true;
    uint64_t ticket;
    dw_error err = {0};
    assert_ok(dw_publisher_publish(p, &ticket, &note, &err), &err);
    assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &err), &err);
    expect_config(store, "\"qwen4\"", "weight_block_size");
    dw_publisher_close(p);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_block),  cmocka_unit_test(test_fp8_row),
        cmocka_unit_test(test_int8_row),   cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_config),     cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
