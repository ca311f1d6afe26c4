/* Quantised publish: what followers get is what a plain quantiser makes of the trainer's
 * weights. */
/* labels: threads */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/quant_trainer.h"
#include "inner.h"

/* ---- the publisher ---- */

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
    options.fold_every = 2;
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
    dw_publisher_close(open_trainer(&m, store, &options));

    /* another scheme, none, another rounding, another choice of tensors */
    quant.scheme = DW_QUANT_INT8_ROW;
    expect_refused(&m, store, &options, DW_MISMATCH, "quantised as fp8-block");
    options.quantize = NULL;
    expect_refused(&m, store, &options, DW_MISMATCH, "unquantised");
    options.quantize = &quant;
    quant = quant_options(DW_QUANT_FP8_BLOCK, true);
    expect_refused(&m, store, &options, DW_MISMATCH,
                   "rounded to bf16 first, these weights would be quantised from F32 as");
    quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    static const char *const keep[] = {"*.up_proj.weight"};
    quant.keep = keep;
    quant.n_keep = 1;
    expect_refused(&m, store, &options, DW_MISMATCH,
                   "the same patterns of tensors to keep and to quantise");
    quant.n_keep = 0;
    dw_publisher_close(open_trainer(&m, store, &options));
    check(&m, store, &quant);

    /* memory of the trainer's model */
    dw_error err = {0};
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = m.tensors;
    follow.n_tensors = N_SOURCE;
    dw_follower *f;
    assert_fails(dw_follower_open(&f, store, &follow, &err), DW_MISMATCH, &err);
    assert_non_null(strstr(err.text, "the stream is quantised as fp8-block"));

    dw_stream *stream;
    dw_stream_info info;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_stream_get_info(stream, &info);
    assert_string_equal(info.quantization, "fp8-block");
    assert_string_equal(info.rounded, "bf16");
    dw_stream_close(stream);
    dw_store_close(store);
    trainer_free(&m);
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
                       {"merges.txt", "not JSON either", 15}};
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
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
