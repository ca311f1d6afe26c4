/* GRPO against the model itself: packed games must give the same probabilities as each
 * guess by itself, and a step must make the better guess likelier. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group_queue.h"
#include "grpo.h"
#include "qwen_train.h"

static const qwen_config config = {
    .n_vocab = 100,
    .n_hidden = 32,
    .n_inter = 64,
    .n_layers = 2,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 8,
    .max_positions = 128,
    .rope_theta = 10000,
    .rms_eps = 1e-6f,
    .tied = true,
    .eos = -1,
};
static const grpo_options options = {0.2f, 0.28f};

static qwen_trainer *trainer_new(void)
{
    dw_error err;
    qwen_trainer *trainer;
    assert_int_equal(qwen_trainer_new(&trainer, &config, 1, &err), DW_OK);
    qwen_trainer_init(trainer, 7);
    return trainer;
}

static int32_t token_of(char c)
{
    return c == '\n' ? 0 : c - ' ' + 1;
}

static void append(played_game *game, const char *text)
{
    for (; *text; text++)
        game->tokens[game->n_tokens++] = token_of(*text);
}

/* Log-probabilities of a guess's tokens, computed in a separate sequence. */
static void logp_by_itself(qwen_trainer *trainer, const played_game *game,
                           const played_guess *g, float *out)
{
    dw_error err;
    int32_t tokens[GAME_MAX_TOKENS];
    float logp[GAME_MAX_TOKENS];
    const uint32_t n = g->n_before + g->n_tokens;
    memcpy(tokens, game->tokens, g->n_before * sizeof tokens[0]);
    memcpy(tokens + g->n_before, g->tokens, g->n_tokens * sizeof tokens[0]);
    assert_int_equal(qwen_trainer_forward(trainer, tokens, &n, 1, logp, NULL, &err),
                     DW_OK);
    memcpy(out, logp + g->n_before - 1, g->n_tokens * sizeof *out);
}

/* Appends a guess that was sampled as SAMPLED with REWARD, and the environment's answer
 * if the game goes on. */
static void add_guess(qwen_trainer *trainer, played_game *game, const char *sampled,
                      const char *line, float reward)
{
    played_guess *g = &game->guesses[game->n_guesses++];
    if (game->n_tokens == 0)
        append(game, "WORDLE\n");
    g->n_before = game->n_tokens;
    for (; *sampled; sampled++)
        g->tokens[g->n_tokens++] = token_of(*sampled);
    g->reward = reward;
    g->valid = reward > 0;
    logp_by_itself(trainer, game, g, g->logp);
    if (line)
        append(game, line);
}

static played_group *group_new(qwen_trainer *trainer)
{
    played_group *group = played_group_new(2);
    assert_non_null(group);
    /* one game with a short guess, one that never ended its line: neither is in the text
     */
    add_guess(trainer, &group->games[0], "crane\n", "crane .gy..\n", 0.3f);
    add_guess(trainer, &group->games[0], "ab\n", "ab??? !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[0], "trail\n", NULL, 1.5f);
    add_guess(trainer, &group->games[1], "cranes", "crane !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[1], "a?b~ \n", "a?b?? !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[1], "trial\n", NULL, 0.1f);
    return group;
}

static void test_packed_as_alone(void **state)
{
    (void)state;
    dw_error err;
    grpo_report r;
    qwen_trainer *trainer = trainer_new();
    played_group *group = group_new(trainer);
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_int_equal(r.n_games, 2);
    assert_int_equal(r.n_guesses, 6);
    assert_int_equal(r.n_tokens, 6 + 3 + 6 + 6 + 6 + 6);
    assert_int_equal(r.n_sequences, 2 + 4);
    assert_true(r.ratio_off < 1e-4);
    assert_true(r.clip_rate == 0);
    assert_true(fabs(r.reward - (1.6 - 0.3) / 2) < 1e-6);
    free(group);
    qwen_trainer_free(trainer);
}

static float sum_of(qwen_trainer *trainer, const played_group *group, size_t game,
                    uint32_t guess)
{
    float logp[GUESS_MAX_TOKENS], sum = 0;
    const played_guess *g = &group->games[game].guesses[guess];
    logp_by_itself(trainer, &group->games[game], g, logp);
    for (uint32_t i = 0; i < g->n_tokens; i++)
        sum += logp[i];
    return sum;
}

static void test_better_becomes_likelier(void **state)
{
    (void)state;
    dw_error err;
    grpo_report r;
    const qwen_adamw adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0, 1};
    qwen_trainer *trainer = trainer_new();
    played_group *group = group_new(trainer);
    const float good = sum_of(trainer, group, 0, 2), bad = sum_of(trainer, group, 1, 1);
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_true(qwen_trainer_step(trainer, &adamw) > 0);
    assert_true(sum_of(trainer, group, 0, 2) > good + 0.01f);
    assert_true(sum_of(trainer, group, 1, 1) < bad - 0.01f);
    free(group);
    qwen_trainer_free(trainer);
}

/* Equal games have no gradient; neither do ratios beyond the clip. */
static void test_nothing_to_learn(void **state)
{
    (void)state;
    dw_error err;
    grpo_report r;
    const qwen_adamw adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0, 1};
    qwen_trainer *trainer = trainer_new();
    played_group *group = played_group_new(2);
    for (size_t i = 0; i < 2; i++)
        add_guess(trainer, &group->games[i], "crane\n", NULL, 0.3f);
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_true(qwen_trainer_step(trainer, &adamw) < 1e-6f);

    group->games[0].guesses[0].reward = 1;
    for (size_t i = 0; i < 6;
         i++) { /* the good one is already likelier, the bad one rarer */
        group->games[0].guesses[0].logp[i] -= 1;
        group->games[1].guesses[0].logp[i] += 1;
    }
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_true(r.clip_rate == 1);
    assert_true(qwen_trainer_step(trainer, &adamw) == 0);
    free(group);
    qwen_trainer_free(trainer);
}

/* ---- the objective, against itself ---- */

/* Games of one guess each, whose tokens were sampled OFF[i] likelier than in the trainer:
 * ratio exp(-OFF[i]). The first has the larger reward, so its advantage is positive. */
static played_group *group_of_two(qwen_trainer *trainer, const float off[2])
{
    static const char *const guesses[] = {"crane\n", "trail\n"};
    played_group *group = played_group_new(2);
    assert_non_null(group);
    for (size_t i = 0; i < 2; i++) {
        add_guess(trainer, &group->games[i], guesses[i], NULL, i == 0 ? 1.0f : 0.0f);
        for (uint32_t k = 0; k < group->games[i].guesses[0].n_tokens; k++)
            group->games[i].guesses[0].logp[k] += off[i];
    }
    return group;
}

/* The objective of grpo.h: means over tokens, advantages of 1 and -1. */
static double objective(qwen_trainer *trainer, const played_group *group)
{
    const double scale = 0.5 / (0.5 + 1e-4);
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < 2; i++) {
        const played_guess *g = &group->games[i].guesses[0];
        const double a = i == 0 ? scale : -scale;
        float logp[GUESS_MAX_TOKENS];
        logp_by_itself(trainer, &group->games[i], g, logp);
        for (uint32_t k = 0; k < g->n_tokens; k++, n++) {
            const double ratio = exp((double)logp[k] - (double)g->logp[k]);
            const double clipped = fmin(fmax(ratio, 1 - (double)options.clip_low),
                                        1 + (double)options.clip_high);
            sum += fmin(ratio * a, clipped * a);
        }
    }
    return sum / (double)n;
}

/* Moves the weights of tensor T by AMOUNT times its gradient, rounded to bf16; returns
 * the predicted change of the loss. */
static double move(qwen_trainer *t, size_t tensor, const uint16_t *kept, double amount)
{
    const size_t first = t->offsets[tensor], n = t->infos[tensor].n_elems;
    double foretold = 0;
    for (size_t e = 0; e < n; e++) {
        const float was = qwen_bf16(kept[e]);
        const float to = was + (float)(amount * (double)t->grads[first + e]);
        dw_cast_bf16(&t->weights[first + e], &to, 1);
        foretold += (double)t->grads[first + e] *
                    (double)(qwen_bf16(t->weights[first + e]) - was);
    }
    return foretold;
}

/* The gradient is that of the objective: if both ratios are inside the clip, if a good
 * guess has become rarer or a bad one likelier than the clip (the gradient stays), and if
 * only one of the two is beyond it. */
static void test_finite_difference(void **state)
{
    static const struct {
        float off[2];
        double clip_rate;
    } cases[] = {
        {{0.1f, -0.1f}, 0}, {{-0.15f, 0.12f}, 0}, {{0.7f, 0}, 0},      {{0, -0.7f}, 0},
        {{0.7f, -0.7f}, 0}, {{-0.7f, 0.1f}, 0.5}, {{0.1f, 0.7f}, 0.5}, {{-0.7f, 0.7f}, 1},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dw_error err;
        grpo_report r;
        qwen_trainer *t = trainer_new();
        played_group *group = group_of_two(t, cases[c].off);
        assert_int_equal(grpo_backward(t, &options, &group, 1, &r, &err), DW_OK);
        assert_true(r.clip_rate == cases[c].clip_rate);
        for (size_t i = 0; i < t->n_tensors; i += 3) {
            const size_t n = t->infos[i].n_elems;
            double norm = 0, says[2], is[2];
            for (size_t e = 0; e < n; e++)
                norm += pow((double)t->grads[t->offsets[i] + e], 2);
            if (cases[c].clip_rate == 1) {
                assert_true(norm == 0);
                continue;
            }
            uint16_t *kept = malloc(n * sizeof *kept);
            memcpy(kept, t->weights + t->offsets[i], n * sizeof *kept);
            for (int side = 0; side < 2; side++) {
                /* far enough to change the objective by about 0.005 */
                says[side] = move(t, i, kept, (side == 0 ? -0.005 : 0.005) / norm);
                is[side] = -objective(t, group);
            }
            memcpy(t->weights + t->offsets[i], kept, n * sizeof *kept);
            if (!(fabs(is[1] - is[0] - (says[1] - says[0])) < 3e-4))
                fail_msg("case %zu, %s: the loss moved by %.6f, not by %.6f", c,
                         t->infos[i].name, is[1] - is[0], says[1] - says[0]);
            free(kept);
        }
        free(group);
        qwen_trainer_free(t);
    }
}

/* The line end is left out if the model was sure of it, but not the sixth token of a
 * guess that is no word. */
static void test_sixth_token(void **state)
{
    (void)state;
    dw_error err;
    grpo_report r;
    qwen_trainer *trainer = trainer_new();
    played_group *group = group_new(trainer);
    group->games[0].guesses[0].logp[5] = -0.01f; /* crane\n */
    group->games[1].guesses[0].logp[5] = -0.01f; /* cranes */
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_int_equal(r.n_tokens, 5 + 3 + 6 + 6 + 6 + 6);
    assert_int_equal(r.n_sequences, 2 + 3);
    free(group);
    qwen_trainer_free(trainer);
}

static void test_queue(void **state)
{
    (void)state;
    group_queue *queue = group_queue_new(2);
    played_group *a = played_group_new(1), *b = played_group_new(2);
    assert_null(group_queue_pop(queue, 1));
    assert_true(group_queue_push(queue, a));
    assert_true(group_queue_push(queue, b));
    assert_ptr_equal(group_queue_pop(queue, 1000), a);
    assert_true(group_queue_push(queue, a));
    assert_ptr_equal(group_queue_pop(queue, 1000), b);
    group_queue_close(queue); /* a stays in the queue and is freed with it */
    assert_null(group_queue_pop(queue, 1000));
    assert_false(group_queue_push(queue, b)); /* owns it nevertheless */
    group_queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_as_alone),
        cmocka_unit_test(test_better_becomes_likelier),
        cmocka_unit_test(test_nothing_to_learn),
        cmocka_unit_test(test_finite_difference),
        cmocka_unit_test(test_sixth_token),
        cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
