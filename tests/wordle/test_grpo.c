/* GRPO against the model itself: packed games must give the same probabilities as each
 * guess by itself, and a step must improve the objective. */
#include <math.h>

#include "unit/suite.h"

#include "grpo.h"

static model_trainer *trainer_new(void)
{
    model_trainer *trainer = model_trainer_new(7);
    assert_non_null(trainer);
    return trainer;
}

static void append(played_game *game, const char *text)
{
    for (; *text; text++)
        game->tokens[game->n_tokens++] = model_token(*text);
}

/* Log-probabilities of a guess's tokens, computed in a separate sequence. */
static void logp_by_itself(model_trainer *trainer, const played_game *game,
                           const played_guess *g, float *out)
{
    int32_t tokens[GAME_MAX_TOKENS];
    float logp[GAME_MAX_TOKENS];
    const uint32_t n = g->n_before + g->n_tokens;
    memcpy(tokens, game->tokens, g->n_before * sizeof tokens[0]);
    memcpy(tokens + g->n_before, g->tokens, g->n_tokens * sizeof tokens[0]);
    model_trainer_forward(trainer, tokens, n, logp, NULL);
    memcpy(out, logp + g->n_before - 1, g->n_tokens * sizeof *out);
}

/* Appends a guess that was sampled as SAMPLED with REWARD, and the environment's answer
 * if the game goes on. */
static void add_guess(model_trainer *trainer, played_game *game, const char *sampled,
                      const char *line, float reward)
{
    played_guess *g = &game->guesses[game->n_guesses++];
    if (game->n_tokens == 0)
        append(game, "WORDLE\n");
    g->n_before = game->n_tokens;
    for (; *sampled; sampled++)
        g->tokens[g->n_tokens++] = model_token(*sampled);
    g->reward = reward;
    g->valid = reward > 0;
    logp_by_itself(trainer, game, g, g->logp);
    if (line)
        append(game, line);
}

static played_group *group_new(model_trainer *trainer)
{
    played_group *group = played_group_new(2);
    assert_non_null(group);
    /* one game with a short guess, one that never ended its line: neither is in the text
     */
    add_guess(trainer, &group->games[0], "crane\n", "crane .gy..\n", 0.3f);
    add_guess(trainer, &group->games[0], "ab\n", "ab??? !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[0], "trail\n", NULL, 1.5f);
    add_guess(trainer, &group->games[1], "cranes", "crane !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[1], "a?b! \n", "a?b?? !!!!!\n", -0.2f);
    add_guess(trainer, &group->games[1], "trial\n", NULL, 0.1f);
    return group;
}

TEST(test_packed_as_alone)
{
    dw_error err;
    grpo_report r;
    model_trainer *trainer = trainer_new();
    played_group *group = group_new(trainer);
    assert_int_equal(grpo_backward(trainer, &group, 1, &r, &err), DW_OK);
    assert_int_equal(r.n_games, 2);
    assert_int_equal(r.n_guesses, 6);
    assert_int_equal(r.n_tokens, 6 + 3 + 6 + 6 + 6 + 6);
    assert_int_equal(r.n_sequences, 2 + 4);
    assert_true(r.ratio_off < 1e-4);
    assert_true(r.clip_rate == 0);
    assert_true(fabs(r.reward - (1.6 - 0.3) / 2) < 1e-6);
    free(group);
    model_trainer_free(trainer);
}

/* Equal games have no gradient. */
TEST(test_nothing_to_learn)
{
    dw_error err;
    grpo_report r;
    model_trainer *trainer = trainer_new();
    played_group *group = played_group_new(2);
    for (size_t i = 0; i < 2; i++)
        add_guess(trainer, &group->games[i], "crane\n", NULL, 0.3f);
    assert_int_equal(grpo_backward(trainer, &group, 1, &r, &err), DW_OK);
    assert_true(model_trainer_step(trainer, 1e-3f) < 1e-6f);
    free(group);
    model_trainer_free(trainer);
}

/* ---- the objective, against itself ---- */

/* Games of one guess each, whose tokens were sampled OFF[i] likelier than in the trainer:
 * ratio exp(-OFF[i]). The first has the larger reward, so its advantage is positive. */
static played_group *group_of_two(model_trainer *trainer, const float off[2])
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
static double objective(model_trainer *trainer, const played_group *group)
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
            const double clipped =
                fmin(fmax(ratio, 1 - GRPO_CLIP_LOW), 1 + GRPO_CLIP_HIGH);
            sum += fmin(ratio * a, clipped * a);
        }
    }
    return sum / (double)n;
}

/* A step improves the objective if a ratio is inside the clip, or beyond it on the side
 * that has a gradient; it is no step if both are beyond the clip. */
TEST(test_objective)
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
        model_trainer *t = trainer_new();
        played_group *group = group_of_two(t, cases[c].off);
        const double before = objective(t, group);
        assert_int_equal(grpo_backward(t, &group, 1, &r, &err), DW_OK);
        assert_true(fabs(r.clip_rate - cases[c].clip_rate) < 1e-9);
        const float norm = model_trainer_step(t, 3e-4f);
        if (cases[c].clip_rate == 1)
            assert_true(norm == 0);
        else
            assert_true(objective(t, group) > before);
        free(group);
        model_trainer_free(t);
    }
}

/* The line end is left out if the model was sure of it, but not the sixth token of a
 * guess that is no word. */
TEST(test_sixth_token)
{
    dw_error err;
    grpo_report r;
    model_trainer *trainer = trainer_new();
    played_group *group = group_new(trainer);
    group->games[0].guesses[0].logp[5] = -0.01f; /* crane\n */
    group->games[1].guesses[0].logp[5] = -0.01f; /* cranes */
    assert_int_equal(grpo_backward(trainer, &group, 1, &r, &err), DW_OK);
    assert_int_equal(r.n_tokens, 5 + 3 + 6 + 6 + 6 + 6);
    assert_int_equal(r.n_sequences, 2 + 3);
    free(group);
    model_trainer_free(trainer);
}

RUN_TESTS(NULL, NULL)
