/* Training: gradients against finite differences for every tensor, forward against
 * inference, and state that is saved. */
#include <math.h>

#include "small_batch.h"
#include "unit/temp_dir.h"

/* Moves tensor I a little to bf16 numbers in both directions, along its gradient or
 * randomly. The loss must change as the gradient predicts. */
static void check_tensor(qwen_trainer *t, batch *b, size_t i, bool along_gradient,
                         double scale)
{
    size_t n = t->infos[i].n_elems;
    const float *grad = t->grads + t->offsets[i];
    uint16_t *w = t->weights + t->offsets[i];
    uint16_t *kept = malloc(n * sizeof *kept);
    float *moved = malloc(n * sizeof *moved), *gap = calloc(n, sizeof *gap);
    double norm = 0, loss[2], foretold = 0, size = 0;
    uint64_t rng;
    memcpy(kept, w, n * sizeof *w);
    for (size_t e = 0; e < n; e++)
        norm += (double)grad[e] * (double)grad[e];
    norm = sqrt(norm / (double)n);
    for (int side = 0; side < 2; side++) {
        rng = i;
        for (size_t e = 0; e < n; e++) {
            double by =
                along_gradient ? (double)grad[e] / norm : (double)random_float(&rng);
            moved[e] = qwen_bf16(kept[e]) + (float)((side == 0 ? -scale : scale) * by);
        }
        dw_cast_bf16(w, moved, n);
        for (size_t e = 0; e < n; e++)
            gap[e] = side == 0 ? -qwen_bf16(w[e]) : gap[e] + qwen_bf16(w[e]);
        loss[side] = loss_of(t, b);
    }
    memcpy(w, kept, n * sizeof *w);
    for (size_t e = 0; e < n; e++) {
        foretold += (double)grad[e] * (double)gap[e];
        size += (double)gap[e] * (double)gap[e];
    }
    double allowed = 0.02 * norm * sqrt((double)n * size) * (along_gradient ? 1 : 0.1);
    if (!(fabs(loss[1] - loss[0] - foretold) < allowed + 2e-4))
        fail_msg("%s: the loss moved by %.6g, not %.6g (%.2g allowed)", t->infos[i].name,
                 loss[1] - loss[0], foretold, allowed);
    free(kept);
    free(moved);
    free(gap);
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        qwen_config c = small_config(tied);
        qwen_trainer *t = small_trainer(&c, 1);
        batch b = make_batch(&c);
        dw_error err;
        loss_of(t, &b);
        assert_ok(qwen_trainer_backward(t, b.coef, &err), err);
        for (size_t i = 0; i < t->n_tensors; i++) {
            double scale = t->infos[i].n_dims == 1 ? 0.01 : 0.003;
            check_tensor(t, &b, i, true, scale);
            check_tensor(t, &b, i, false, scale);
        }
        qwen_trainer_free(t);
    }
}

/* The trainer's log-probabilities are those that sampling gives. */
static void test_equals_inference(void **state)
{
    (void)state;
    qwen_config c = small_config(false);
    qwen_trainer *t = small_trainer(&c, 1);
    batch b = make_batch(&c);
    loss_of(t, &b);
    size_t n;
    dw_error err;
    qwen_weights *w;
    qwen_session *s;
    const dw_tensor *tensors = qwen_trainer_weights(t, &n);
    assert_ok(qwen_weights_bind(&w, &c, tensors, n, &err), err);
    assert_ok(qwen_session_new(&s, &c, N_SEQS, 80, 1, &err), err);
    float *logits = malloc(c.n_vocab * sizeof *logits);
    size_t row = 0;
    for (uint32_t q = 0; q < N_SEQS; q++)
        for (uint32_t i = 0; i < lengths[q]; i++, row++) {
            assert_ok(qwen_session_step(s, w, &q, &b.tokens[row], NULL, 1, logits, &err),
                      err);
            double sum = 0;
            for (size_t v = 0; v < c.n_vocab; v++)
                sum += exp((double)logits[v]);
            float expected = i + 1 == lengths[q]
                                 ? 0
                                 : (float)((double)logits[b.tokens[row + 1]] - log(sum));
            assert_near(&b.logp[row], &expected, 1, 1e-4f);
        }
    free(logits);
    qwen_session_free(s);
    qwen_weights_free(w);
    qwen_trainer_free(t);
}

static void train(qwen_trainer *t, batch *b, int n_steps)
{
    const qwen_adamw how = {0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 1};
    dw_error err;
    for (int i = 0; i < n_steps; i++) {
        loss_of(t, b);
        assert_ok(qwen_trainer_backward(t, b->coef, &err), err);
        assert_true(qwen_trainer_step(t, &how) > 0);
    }
}

/* Negative coefficients make their tokens likelier. */
static void test_learns(void **state)
{
    (void)state;
    qwen_config c = small_config(true);
    qwen_trainer *t = small_trainer(&c, 1);
    batch b = make_batch(&c);
    for (size_t i = 0; i < N_TOKENS; i++)
        b.coef[i] = -1.0f / N_TOKENS;
    double before = loss_of(t, &b);
    train(t, &b, 60);
    assert_true(loss_of(t, &b) < before / 4);
    qwen_trainer_free(t);
}

static void test_state(void **state)
{
    (void)state;
    qwen_config c = small_config(true);
    qwen_trainer *first = small_trainer(&c, 1), *second;
    batch b = make_batch(&c);
    dw_error err;
    train(first, &b, 3);
    assert_ok(qwen_trainer_save_state(first, temp_path("state"), &err), err);
    train(first, &b, 3);
    assert_ok(qwen_trainer_new(&second, &c, 2, &err), err);
    assert_ok(qwen_trainer_load_state(second, temp_path("state"), &err), err);
    assert_int_equal(qwen_trainer_steps(second), 3);
    train(second, &b, 3);
    assert_memory_equal(first->weights, second->weights, first->n_params * 2);
    assert_memory_equal(first->masters, second->masters, first->n_params * 4);

    /* the bf16 weights alone are no state: they have no steps and moments */
    size_t n;
    const dw_tensor *tensors = qwen_trainer_weights(first, &n);
    assert_ok(dw_checkpoint_write(temp_path("weights"), tensors, n, NULL, &err), err);
    assert_int_equal(qwen_trainer_load_state(second, temp_path("weights"), &err),
                     DW_CORRUPT);
    assert_memory_equal(first->weights, second->weights, first->n_params * 2);
    qwen_trainer_free(first);
    qwen_trainer_free(second);
}

static void test_refused(void **state)
{
    (void)state;
    qwen_config c = small_config(true);
    qwen_trainer *t = small_trainer(&c, 1);
    float logp[4], coef[4] = {0};
    int32_t tokens[4] = {1, 2, 3, (int32_t)c.n_vocab};
    dw_error err;
    const struct {
        uint32_t lengths[2];
        size_t n;
    } bad[] = {{{4, 0}, 1}, {{0, 2}, 2}, {{QWEN_MAX_LENGTH + 1, 0}, 1}, {{0, 0}, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(
            qwen_trainer_forward(t, tokens, bad[i].lengths, bad[i].n, logp, NULL, &err),
            DW_INVALID);
    assert_int_equal(qwen_trainer_backward(t, coef, &err), DW_INVALID);
    assert_ok(qwen_trainer_forward(t, tokens, (uint32_t[]){3}, 1, logp, NULL, &err), err);
    assert_ok(qwen_trainer_backward(t, coef, &err), err);
    assert_int_equal(qwen_trainer_backward(t, coef, &err), DW_INVALID);

    /* a gradient that is no number changes nothing, and is gone afterwards */
    uint16_t *before = malloc(t->n_params * sizeof *before);
    memcpy(before, t->weights, t->n_params * sizeof *before);
    t->grads[5] = NAN;
    assert_true(isnan(qwen_trainer_step(t, &(qwen_adamw){.lr = 1, .eps = 1})));
    assert_memory_equal(before, t->weights, t->n_params * sizeof *before);
    assert_true(t->grads[5] == 0);
    free(before);
    qwen_trainer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),

        cmocka_unit_test(test_equals_inference),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
