/* Tests of what goes wrong while decoding and storing, for the fake driver and for real
 * ones; and the real trace. */
#ifndef TESTS_CUDA_STAGE_SUITE_H
#define TESTS_CUDA_STAGE_SUITE_H

#include <unistd.h>

#include "cuda/encode_suite.h"

/* Two versions on the host, and the delta between them. */
typedef struct step {
    size_t n;
    two_versions v;
    dw_tensor *old;
    dw_tensor *next; /* in v */
    dw_delta *delta;
} step;

static inline step step_make(const device_case *cases, size_t n)
{
    step s = {.n = n, .v = versions_make(cuda, cases, n)};
    s.next = calloc(n, sizeof *s.next);
    for (size_t i = 0; i < n; i++)
        s.next[i] = s.v.host[i].base;
    s.old = host_copies(s.next, n);
    dw_cuda_encode_call encoder = {0};
    s.delta = encode_both(cuda, &s.v, &encoder);
    return s;
}

static inline void step_free(step *s)
{
    dw_delta_close(s->delta);
    host_copies_free(s->old, s->n);
    free(s->next);
    versions_free(cuda, &s->v);
}

static inline void put_on_device(const dw_tensor *to, const dw_tensor *from)
{
    assert_int_equal(dw_cuda_enter(cuda, NULL), DW_OK);
    assert_int_equal(dw_cuda_up(cuda, (cu_pointer)(uintptr_t)to->data, from->data,
                                from->n_bytes, NULL),
                     DW_OK);
    assert_int_equal(dw_cuda_wait(cuda, NULL), DW_OK);
    dw_cuda_leave(cuda);
}

/* A weight changes between stage and apply: all of them stay as they were. */
static inline void test_mismatch(void **state)
{
    (void)state;
    const device_case cases[] = {{.dtype = DW_BF16, .n = 30000, .per_mille = 100},
                                 {.dtype = DW_F32, .n = 9000, .per_mille = 50},
                                 {.dtype = DW_I8, .n = 9000, .is_noise = true}};
    step s = step_make(cases, 3);
    for (size_t t = 0; t < 3; t++) {
        const dw_element element = dw_dtype_element(s.old[t].dtype);
        uint64_t at = 0; /* the last element that changes */
        for (uint64_t i = 0; i < cases[t].n; i++)
            if (dw_element_load(s.old[t].data, i, element.width) !=
                dw_element_load(s.next[t].data, i, element.width))
                at = i;
        device_copies d = copies_make(cuda, s.old, 3);
        dw_cuda_stage *stage;
        dw_stage_result result;
        dw_apply_options options;
        dw_error err;
        dw_apply_options_init(&options);
        assert_int_equal(dw_cuda_stage_open(&stage, &result, cuda, s.delta, d.tensors, 3,
                                            &options, &err),
                         DW_OK);
        const uint64_t mask = ~0ull >> (64 - 8 * element.width);
        const uint64_t new_ = dw_element_load(s.next[t].data, at, element.width);
        uint64_t wrong = dw_element_load(s.old[t].data, at, element.width) ^ 1;
        wrong = (wrong == new_ ? wrong ^ 2 : wrong) & mask;
        dw_tensor *changed = host_copies(s.old, 3);
        dw_element_store(changed[t].data, at, element.width, wrong);
        put_on_device(&d.tensors[t], &changed[t]);
        assert_int_equal(dw_cuda_stage_apply(stage, &err), DW_STALE);
        assert_non_null(strstr(err.text, s.old[t].name));
        assert_non_null(strstr(err.text, "1 weights on the device"));
        assert_on_device(cuda, &d, changed);
        /* a weight may have its new value already; and storing can be repeated */
        dw_element_store(changed[t].data, at, element.width, new_);
        put_on_device(&d.tensors[t], &changed[t]);
        for (unsigned again = 0; again < 2; again++) {
            assert_int_equal(dw_cuda_stage_apply(stage, &err), DW_OK);
            assert_on_device(cuda, &d, s.next);
        }
        dw_cuda_stage_close(stage);
        host_copies_free(changed, 3);
        copies_free(cuda, &d);
    }
    step_free(&s);
}

/* Few changes in one block of a tensor, and many in another, which take fewer bytes each:
 * there is not room for them at first. And the memory of one stage serves the next. */
static inline void test_crowded(void **state)
{
    (void)state;
    const uint64_t n_block = DW_BLOCK_BYTES / 8, n = n_block + 9000;
    const device_case plain = {.dtype = DW_F64, .n = n};
    step s = {.n = 1, .v = versions_make(cuda, &plain, 1)};
    s.old = host_copies(&s.v.host[0].base, 1);
    uint64_t *weights = s.v.host[0].next.data;
    for (uint64_t i = 0; i < n; i++)
        if (i < n_block ? random_below(200) == 0 : random_below(2) == 0)
            weights[i]++;
    s.next = host_copies(&s.v.host[0].next, 1);
    dw_diff_options options;
    dw_error err;
    dw_diff_options_init(&options);
    options.n_threads = 1;
    assert_int_equal(dw_delta_diff(&s.delta, s.old, s.next, 1, &options, &err), DW_OK);
    const dw_delta_block *b = s.delta->entries[0].blocks;
    assert_int_equal(b[1].mode, DW_BLOCK_CLASS);
    uint64_t n_last = 0;
    for (uint64_t i = n_block; i < n; i++)
        n_last += weights[i] != ((uint64_t *)s.old[0].data)[i];
    /* more than cuda_stage.c has room for at first */
    assert_true((double)n_last > 64 + 1.25 * (double)s.delta->info.n_changed *
                                          b[1].n_bytes / (b[0].n_bytes + b[1].n_bytes));
    for (int round = 0; round < 2; round++)
        stage_and_apply(cuda, s.delta, s.old, s.next, 1);
    host_copies_free(s.next, 1);
    s.next = NULL;
    step_free(&s);
}

/* Damaged bytes and wrong weights: the same verdict as on the CPU, and nothing changes.
 */
static inline void test_damage(void **state)
{
    (void)state;
    const device_case cases[] = {{.dtype = DW_BF16, .n = 12000, .per_mille = 60},
                                 {.dtype = DW_F64, .n = 2500, .per_mille = 200},
                                 {.dtype = DW_U16, .n = 5000, .is_noise = true}};
    step s = step_make(cases, 3);
    device_copies d = copies_make(cuda, s.old, 3);
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = 1;
    unsigned n_refused = 0;
    for (unsigned round = 0; round < 400; round++) {
        dw_delta_block *b = &s.delta->entries[round % 3].blocks[0];
        const dw_delta_block kept = *b;
        uint8_t *bytes = malloc(kept.n_bytes + 1);
        memcpy(bytes, kept.bytes, kept.n_bytes);
        b->bytes = bytes;
        /* bits flipped near the front or anywhere, or the end cut */
        const unsigned kind = (unsigned)random_below(4);
        const uint32_t near = kept.n_bytes < 24 ? kept.n_bytes : 24;
        if (kind == 0)
            b->n_bytes = (uint32_t)random_below(kept.n_bytes);
        else
            bytes[random_below(kind == 1 ? near : kept.n_bytes)] ^=
                (uint8_t)(1u << random_below(8));
        dw_error err;
        dw_cuda_stage *stage;
        dw_stage_result result;
        const dw_status expected = dw_delta_verify(s.delta, s.old, 3, &options, &err);
        const dw_status got = dw_cuda_stage_open(&stage, &result, cuda, s.delta,
                                                 d.tensors, 3, &options, &err);
        assert_int_equal(got, expected);
        n_refused += got != DW_OK;
        dw_cuda_stage_close(stage);
        *b = kept;
        free(bytes);
    }
    assert_true(n_refused > 300);
    assert_on_device(cuda, &d, s.old);
    copies_free(cuda, &d);
    /* the new weights instead of the old ones */
    d = copies_make(cuda, s.next, 3);
    dw_cuda_stage *stage;
    dw_stage_result result;
    dw_error err;
    assert_int_equal(
        dw_cuda_stage_open(&stage, &result, cuda, s.delta, d.tensors, 3, &options, &err),
        DW_STALE);
    assert_null(stage);
    copies_free(cuda, &d);
    step_free(&s);
}

/* A real run: every step has the same bytes, and leads to the same weights. DW_TRACE
 * names a whole one; the slice in tests/data has the same layout. */
static inline void test_trace(void **state)
{
    (void)state;
    char path[1024];
    dw_checkpoint *ckpt;
    dw_error err;
    const char *trace = getenv("DW_TRACE"), *n_steps = getenv("DW_TRACE_STEPS");
    if (!trace)
        trace = DW_TEST_DIR "/data/trace";
    snprintf(path, sizeof path, "%s/base", trace);
    if (access(path, R_OK) != 0) {
        print_message("there is no trace at %s: DW_TRACE names one\n", path);
        skip();
    }
    assert_int_equal(dw_checkpoint_open(&ckpt, path, 0, &err), DW_OK);
    size_t n;
    const dw_tensor *base = dw_checkpoint_tensors(ckpt, &n);
    dw_tensor *old = host_copies(base, n);
    for (int k = 1; k <= (n_steps ? atoi(n_steps) : 3); k++) {
        dw_delta *trl;
        snprintf(path, sizeof path, "%s/deltas/step_%06d.safetensors", trace, k);
        assert_int_equal(dw_delta_open(&trl, path, &err), DW_OK);
        dw_tensor *next = host_copies(old, n), *cpu = host_copies(old, n);
        assert_int_equal(dw_delta_apply(trl, next, n, NULL, &err), DW_OK);
        device_copies on_old = copies_make(cuda, old, n),
                      on_next = copies_make(cuda, next, n);
        two_versions v = {.n = n,
                          .host = calloc(n, sizeof *v.host),
                          .device = calloc(n, sizeof *v.device)};
        for (size_t i = 0; i < n; i++) {
            v.host[i] = (dw_encode_pair){.base = cpu[i], .next = next[i]};
            v.device[i] =
                (dw_encode_pair){.base = on_old.tensors[i], .next = on_next.tensors[i]};
        }
        dw_cuda_encode_call encoder = {0};
        dw_delta *delta = encode_both(cuda, &v, &encoder);
        assert_true(delta->info.n_changed > 1000);
        stage_and_apply(cuda, delta, old, next, n);
        dw_delta_close(delta);
        dw_delta_close(trl);
        free(v.host);
        free(v.device);
        copies_free(cuda, &on_old);
        copies_free(cuda, &on_next);
        host_copies_free(cpu, n);
        host_copies_free(old, n);
        old = next;
    }
    host_copies_free(old, n);
    dw_checkpoint_close(ckpt);
}

#endif
