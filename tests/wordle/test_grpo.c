/* GRPO against the model itself: games as they are packed must give the probabilities of
 * each guess by itself, and a step must make the better guess likelier. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group_queue.h"
#include "grpo.h"

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

/* Log-probabilities of a guess's tokens, computed in a sequence of its own. */
static void alone(qwen_trainer *trainer, const played_game *game, const played_guess *g,
                  float *out)
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

/* Appends a guess that was sampled as SAMPLED with REWARD, and what the environment makes
 * of it where the game goes on. */
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
    alone(trainer, game, g, g->logp);
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
    alone(trainer, &group->games[game], g, logp);
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

/* Equal games teach nothing; neither does what has moved beyond the clip. */
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
    for (size_t i = 0; i < 6; i++) { /* the good one is likelier already, the bad rarer */
        group->games[0].guesses[0].logp[i] -= 1;
        group->games[1].guesses[0].logp[i] += 1;
    }
    assert_int_equal(grpo_backward(trainer, &options, &group, 1, &r, &err), DW_OK);
    assert_true(r.clip_rate == 1);
    assert_true(qwen_trainer_step(trainer, &adamw) == 0);
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
    group_queue_close(queue); /* a stays in it, and is freed with it */
    assert_null(group_queue_pop(queue, 1000));
    assert_false(group_queue_push(queue, b)); /* takes it all the same */
    group_queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_as_alone),
        cmocka_unit_test(test_better_becomes_likelier),
        cmocka_unit_test(test_nothing_to_learn),
        cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
