/* Sticky scales: they go on from those of the head, whatever happened to the versions,
 * attempts and publishers between. */
/* labels: threads */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "publish/publisher.h"
#include "unit/quant_trainer.h"

/* ---- a stream, and what its head must be ---- */

typedef struct run {
    trainer m;
    dw_store *store, *faulty; /* the publisher uses the second */
    dw_quant_options quant;
    dw_publish_options options;
    dw_publisher *p;
    head_scales head;
    bool loses_replies; /* of commits ... */
    bool has_lost_one;  /* ... and from then on they cannot be read */
    bool refuses;       /* to commit what was read */
    dw_error err;
} run;

static dw_fault_kind choose(void *context, uint64_t n, const char *operation,
                            const char *key)
{
    run *r = context;
    (void)n;
    if (!r->loses_replies || strncmp(key, "commits/", 8) != 0)
        return DW_FAULT_NONE;
    const bool is_later = r->has_lost_one;
    r->has_lost_one = r->has_lost_one || strcmp(operation, "put") == 0;
    return is_later ? DW_FAULT_FAIL : r->has_lost_one ? DW_FAULT_LOST : DW_FAULT_NONE;
}

static dw_status confirm(void *context, dw_error *err)
{
    const run *r = context;
    return r->refuses ? dw_fail(err, DW_STALE, NULL, "refused") : DW_OK;
}

static void open_publisher(run *r)
{
    assert_ok(
        dw_publisher_open(&r->p, r->faulty, r->m.tensors, N_SOURCE, &r->options, &r->err),
        &r->err);
}

static void begin(run *r, dw_quant_scheme scheme, bool from_f32, bool in_dir)
{
    *r = (run){.store = kit_mem_store(), .quant = quant_options(scheme, from_f32)};
    const dw_fault_plan plan = {.choose = choose, .context = r};
    trainer_make(&r->m);
    assert_ok(dw_store_new_fault(&r->faulty, r->store, &plan, &r->err), &r->err);
    r->quant.sticky = true;
    r->options = options_of(&r->m, &r->quant);
    r->options.confirm = confirm;
    r->options.confirm_context = r;
    r->options.sweep_every = 1;
    if (in_dir)
        r->options.baseline_dir = fresh_path("baseline");
    open_publisher(r);
    check_after(&r->m, r->store, &r->quant, &r->head);
}

static void end(run *r)
{
    assert_true(r->head.n_kept > 0);
    assert_true(r->head.n_new > 0);
    dw_publisher_close(r->p);
    kit_verify(r->store);
    dw_store_close(r->faulty);
    dw_store_close(r->store);
    head_free(&r->head);
    trainer_free(&r->m);
}

static void reopen(run *r)
{
    dw_publisher_close(r->p);
    open_publisher(r);
}

static bool is_current(run *r)
{
    bool current;
    assert_ok(dw_publisher_is_current(r->p, &current, &r->err), &r->err);
    return current;
}

static dw_status try_publish(run *r, const bool *unchanged, dw_publish_report *report)
{
    uint64_t ticket;
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.unchanged = unchanged;
    assert_ok(dw_publisher_publish(r->p, &ticket, &note, &r->err), &r->err);
    return dw_publisher_wait(r->p, ticket, UINT_MAX, NULL, report, &r->err);
}

/* Publishes, and compares the result. */
static dw_publish_report publish(run *r)
{
    dw_publish_report report;
    dw_digest state = 0;
    assert_ok(dw_publisher_state(r->p, &state, &r->err), &r->err);
    assert_ok(try_publish(r, NULL, &report), &r->err);
    assert_true(report.state == state);
    check_after(&r->m, r->store, &r->quant, &r->head);
    assert_true(is_current(r));
    return report;
}

/* ---- tests ---- */

static void test_versions(void **state)
{
    (void)state;
    static const struct {
        dw_quant_scheme scheme;
        bool from_f32, in_dir;
    } cases[] = {{DW_QUANT_FP8_BLOCK, false, false},
                 {DW_QUANT_FP8_ROW, true, true},
                 {DW_QUANT_INT8_ROW, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        begin(&r, cases[i].scheme, cases[i].from_f32, cases[i].in_dir);
        for (int k = 0; k < 2; k++) {
            trainer_drift(&r.m);
            assert_false(is_current(&r));
            publish(&r);
        }
        assert_true(publish(&r).unchanged);
        reopen(&r);
        assert_true(is_current(&r));
        trainer_drift(&r.m);
        reopen(&r);
        assert_false(is_current(&r));
        publish(&r);
        end(&r);
    }
}

/* Attempts that are not committed leave no trace. */
static void test_failed(void **state)
{
    (void)state;
    for (int in_dir = 0; in_dir < 2; in_dir++) {
        run r;
        begin(&r, DW_QUANT_FP8_BLOCK, false, in_dir);
        uint16_t *last = (uint16_t *)r.m.tensors[LARGE].data + r.m.n[LARGE] - 1;
        trainer_drift(&r.m);
        const uint16_t good = *last;
        *last = 0x7fc0; /* the other blocks were quantised */
        assert_fails(try_publish(&r, NULL, NULL), DW_NOT_FINITE, &r.err);
        *last = good;
        trainer_drift(&r.m);
        r.refuses = true;
        assert_fails(try_publish(&r, NULL, NULL), DW_STALE, &r.err);
        assert_false(is_current(&r));
        r.refuses = false;
        trainer_drift(&r.m);
        publish(&r);
        trainer_drift(&r.m);
        r.refuses = true;
        assert_fails(try_publish(&r, NULL, NULL), DW_STALE, &r.err);
        r.refuses = false;
        reopen(&r); /* the next publisher does not know of it either */
        trainer_drift(&r.m);
        publish(&r);
        end(&r);
    }
}

/* A version that was committed although its publisher does not know it. */
static void test_lost_reply(void **state)
{
    (void)state;
    for (int in_dir = 0; in_dir < 2; in_dir++) {
        run r;
        dw_digest found = 0;
        begin(&r, DW_QUANT_FP8_ROW, false, in_dir);
        trainer_drift(&r.m);
        r.loses_replies = true;
        assert_fails(try_publish(&r, NULL, NULL), DW_UNAVAILABLE, &r.err);
        assert_true(r.has_lost_one);
        r.loses_replies = false;
        head_advance(&r.head, &r.m, &r.quant);
        trainer_drift(&r.m);
        assert_ok(dw_publisher_state(r.p, &found, &r.err), &r.err);
        const dw_publish_report report = publish(&r);
        assert_int_equal(report.version, 2);
        assert_true(report.state == found);
        end(&r);
    }
}

/* A tensor that did not change keeps its scales, also if others look at it between. */
static void test_unchanged(void **state)
{
    (void)state;
    run r;
    begin(&r, DW_QUANT_FP8_BLOCK, false, false);
    const bool large[N_SOURCE] = {[LARGE] = true};
    const size_t n_bytes = r.m.tensors[LARGE].n_bytes;
    uint8_t *kept = malloc(n_bytes);
    publish(&r);
    for (int i = 0; i < 2; i++) {
        memcpy(kept, r.m.tensors[LARGE].data, n_bytes);
        trainer_drift(&r.m);
        assert_false(is_current(&r));
        memcpy(r.m.tensors[LARGE].data, kept, n_bytes);
        assert_ok(try_publish(&r, large, NULL), &r.err);
        check_after(&r.m, r.store, &r.quant, &r.head);
    }
    trainer_drift(&r.m);
    publish(&r);
    free(kept);
    end(&r);
}

/* A restart has no head to go on from. */
static void test_restart(void **state)
{
    (void)state;
    run r;
    dw_publish_report report = {0};
    begin(&r, DW_QUANT_FP8_BLOCK, false, false);
    trainer_drift(&r.m);
    publish(&r);
    for (size_t t = 0; t < r.p->pieces.n_table; t++)
        if (strcmp(r.p->pieces.table[t].name, names[EMBED]) == 0)
            ((uint8_t *)r.p->baseline.data[t])[2 * 50 + 1] ^= 0x40; /* the exponent */
    for (int i = 0; i < 4 && !report.restarted; i++) {
        trainer_drift(&r.m);
        assert_ok(try_publish(&r, NULL, &report), &r.err);
        assert_ok(dw_publisher_drain(r.p, &r.err), &r.err);
    }
    assert_true(report.restarted);
    head_free(&r.head);
    check_after(&r.m, r.store, &r.quant, &r.head);
    trainer_drift(&r.m);
    publish(&r);
    dw_publisher_close(r.p); /* verify would find the version that does not decode */
    dw_store_close(r.faulty);
    dw_store_close(r.store);
    assert_true(r.head.n_kept > 0 && r.head.n_new > 0);
    head_free(&r.head);
    trainer_free(&r.m);
}

/* The same by hand, from a checkpoint of the trainer; a mirror's versions are those of
 * the stream. */
static void test_repair(void **state)
{
    (void)state;
    run r;
    begin(&r, DW_QUANT_INT8_ROW, false, false);
    trainer_drift(&r.m);
    publish(&r);
    dw_publisher_close(r.p);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = temp_dir;
    trainer_drift(&r.m);
    assert_ok(dw_stream_repair(r.store, r.m.tensors, N_SOURCE, &options, NULL, &r.err),
              &r.err);
    head_free(&r.head);
    check_after(&r.m, r.store, &r.quant, &r.head);
    open_publisher(&r);
    assert_true(is_current(&r));
    trainer_drift(&r.m);
    publish(&r);
    end(&r);
}

static void test_refused(void **state)
{
    (void)state;
    trainer m;
    dw_publisher *p;
    dw_error err = {0};
    dw_stream *stream;
    trainer_make(&m);
    for (int sticky = 0; sticky < 2; sticky++) {
        dw_store *store = kit_mem_store(), *other = kit_mem_store();
        dw_quant_options quant = quant_options(DW_QUANT_FP8_ROW, false);
        dw_publish_options options = options_of(&m, &quant);
        quant.sticky = sticky;
        assert_ok(dw_publisher_open(&p, store, m.tensors, N_SOURCE, &options, &err),
                  &err);
        dw_publisher_close(p);
        assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
        assert_int_equal(dw_stream_sticky_scales(stream), sticky);
        dw_stream_close(stream);
        quant.sticky = !sticky;
        assert_fails(dw_publisher_open(&p, store, m.tensors, N_SOURCE, &options, &err),
                     DW_MISMATCH, &err);
        assert_non_null(strstr(err.text, sticky ? "add `quantize.sticky`"
                                                : "drop `quantize.sticky`"));
        options.first = DW_FIRST_FORK;
        options.fork_store = store;
        options.fork_version = DW_NEWEST;
        assert_fails(dw_publisher_open(&p, other, m.tensors, N_SOURCE, &options, &err),
                     DW_MISMATCH, &err);
        /* a fork goes on from its source */
        head_scales head = {0};
        quant.sticky = sticky;
        check_after(&m, store, &quant, sticky ? &head : NULL);
        trainer_drift(&m);
        assert_ok(dw_publisher_open(&p, other, m.tensors, N_SOURCE, &options, &err),
                  &err);
        uint64_t ticket;
        assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &err), &err);
        check_after(&m, other, &quant, sticky ? &head : NULL);
        assert_int_equal(head.n_kept > 0, sticky);
        dw_publisher_close(p);
        head_free(&head);
        dw_store_close(store);
        dw_store_close(other);
    }
    trainer_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),   cmocka_unit_test(test_failed),
        cmocka_unit_test(test_lost_reply), cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_restart),    cmocka_unit_test(test_repair),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
