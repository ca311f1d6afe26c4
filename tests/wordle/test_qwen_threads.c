/* Training on several threads. */
/* labels: threads */
#include <stdlib.h>

#include "small_batch.h"

/* Gradients add up over batches, and are the same for any number of threads. */
static void test_threads_and_sums(void **state)
{
    (void)state;
    qwen_config c = small_config(true);
    c.n_hidden = 96; /* enough work for several threads */
    c.n_inter = 200;
    qwen_trainer *one = small_trainer(&c, 1), *three = small_trainer(&c, 3);
    batch b = make_batch(&c);
    dw_error err;
    qwen_trainer *both[2] = {one, three};
    for (size_t i = 0; i < 2; i++) {
        loss_of(both[i], &b);
        assert_ok(qwen_trainer_backward(both[i], b.coef, &err), err);
    }
    assert_memory_equal(one->grads, three->grads, one->n_params * sizeof(float));
    float *once = malloc(one->n_params * sizeof *once);
    for (size_t i = 0; i < one->n_params; i++)
        once[i] = 2 * one->grads[i];
    loss_of(one, &b);
    assert_ok(qwen_trainer_backward(one, b.coef, &err), err);
    assert_near(one->grads, once, one->n_params, 1e-3f);
    free(once);
    qwen_trainer_free(one);
    qwen_trainer_free(three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
