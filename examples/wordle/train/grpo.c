#include "grpo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

/* The end of the line after a word is not in the text of the game, which goes on with the
 * feedback. If the model was this sure of it, there is nothing to learn; otherwise the
 * guess gets its own sequence. */
#define SURE_LOGP (-0.1f)

/* ---- played games ---- */

played_group *played_group_new(size_t n_games)
{
    played_group *group = calloc(1, sizeof *group + n_games * sizeof group->games[0]);
    if (group) {
        group->version = UINT64_MAX;
        group->n_games = n_games;
    }
    return group;
}

float played_game_reward(const played_game *game, uint32_t first)
{
    float sum = 0;
    for (uint32_t i = first; i < game->n_guesses; i++)
        sum += game->guesses[i].reward;
    return sum;
}

/* ---- advantages ---- */

typedef float advantages[GAME_MAX_GUESSES];

/* Of one group, not yet scaled; adds to the sum of squares and their number. */
static void group_advantages(const played_group *group, advantages *out, double *squares,
                             size_t *n)
{
    for (uint32_t turn = 0; turn < GAME_MAX_GUESSES; turn++) {
        double sum = 0;
        size_t n_there = 0;
        for (size_t g = 0; g < group->n_games; g++)
            if (turn < group->games[g].n_guesses) {
                sum += (double)played_game_reward(&group->games[g], turn);
                n_there++;
            }
        for (size_t g = 0; g < group->n_games; g++) {
            if (turn >= group->games[g].n_guesses)
                continue;
            double a = (double)played_game_reward(&group->games[g], turn) -
                       sum / (double)n_there;
            out[g][turn] = (float)a;
            *squares += a * a;
            (*n)++;
        }
    }
}

/* ---- sequences ---- */

/* A token of a guess, in the row of its sequence that predicts it. */
typedef struct target {
    size_t row;
    float logp; /* when it was sampled */
    float advantage;
} target;

typedef struct sequence {
    int32_t tokens[MODEL_MAX_LEN];
    size_t n_tokens;
    target targets[GAME_MAX_GUESSES * GUESS_MAX_TOKENS];
    size_t n_targets;
} sequence;

typedef struct batch {
    sequence *seqs;
    size_t n_seqs, n_targets;
} batch;

static void add_targets(batch *b, sequence *s, const played_guess *guess, uint32_t first,
                        uint32_t end, float advantage)
{
    for (uint32_t i = first; i < end; i++, b->n_targets++)
        s->targets[s->n_targets++] = (target){
            .row = guess->n_before + i - 1,
            .logp = guess->logp[i],
            .advantage = advantage,
        };
}

/* The text of the game up to LAST, and that guess. */
static sequence *add_sequence(batch *b, const played_game *game, const played_guess *last)
{
    sequence *s = &b->seqs[b->n_seqs++];
    memcpy(s->tokens, game->tokens, last->n_before * sizeof(int32_t));
    memcpy(s->tokens + last->n_before, last->tokens, last->n_tokens * sizeof(int32_t));
    s->n_tokens = last->n_before + last->n_tokens;
    return s;
}

/* How many tokens of the guess the text of the game repeats. */
static uint32_t n_repeated(const played_game *game, const played_guess *guess)
{
    uint32_t n = 0;
    while (n < guess->n_tokens && guess->n_before + n < game->n_tokens &&
           game->tokens[guess->n_before + n] == guess->tokens[n])
        n++;
    return n;
}

static void add_game(batch *b, const played_game *game, const float *advantage)
{
    if (game->n_guesses == 0)
        return;
    const played_guess *last = &game->guesses[game->n_guesses - 1];
    sequence *whole = add_sequence(b, game, last);
    add_targets(b, whole, last, 0, last->n_tokens, advantage[game->n_guesses - 1]);
    for (uint32_t t = 0; t + 1 < game->n_guesses; t++) {
        const played_guess *guess = &game->guesses[t];
        uint32_t n = n_repeated(game, guess);
        add_targets(b, whole, guess, 0, n, advantage[t]);
        if (n == guess->n_tokens ||
            (n + 1 == guess->n_tokens && guess->valid && guess->logp[n] > SURE_LOGP))
            continue;
        add_targets(b, add_sequence(b, game, guess), guess, n, guess->n_tokens,
                    advantage[t]);
    }
}

/* ---- the objective ---- */

void grpo_count(grpo_report *r, played_group *const *groups, size_t n_groups)
{
    size_t n_won = 0, n_invalid = 0, n_to_win = 0, n_later = 0, n_consistent = 0;
    *r = (grpo_report){0};
    for (size_t k = 0; k < n_groups; k++)
        for (size_t g = 0; g < groups[k]->n_games; g++) {
            const played_game *game = &groups[k]->games[g];
            r->n_games++;
            r->n_guesses += game->n_guesses;
            r->reward += (double)played_game_reward(game, 0);
            n_won += game->won;
            n_to_win += game->won ? game->n_guesses : 0;
            for (uint32_t t = 0; t < game->n_guesses; t++)
                n_invalid += !game->guesses[t].valid;
            for (uint32_t t = 1; t < game->n_guesses; t++, n_later++)
                n_consistent += game->guesses[t].consistent;
        }
    r->reward /= (double)r->n_games;
    r->win_rate = (double)n_won / (double)r->n_games;
    r->guesses = n_won ? (double)n_to_win / (double)n_won : 0;
    r->consistent_rate = n_later ? (double)n_consistent / (double)n_later : 0;
    r->invalid_rate = r->n_guesses ? (double)n_invalid / (double)r->n_guesses : 0;
}

/* Coefficients of the loss of a sequence, a negative one makes its token likelier; adds
 * to the sums of the report. */
static void weigh(const batch *b, const sequence *s, const float *logp,
                  const float *entropy, double scale, float *coef, grpo_report *r)
{
    const double share = 1 / (double)b->n_targets;
    memset(coef, 0, s->n_tokens * sizeof *coef);
    for (size_t i = 0; i < s->n_targets; i++) {
        const target *t = &s->targets[i];
        const double ratio = exp((double)fminf(logp[t->row] - t->logp, 3.0f));
        const double advantage = (double)t->advantage * scale;
        const bool clipped = (advantage > 0 && ratio > 1 + GRPO_CLIP_HIGH) ||
                             (advantage < 0 && ratio < 1 - GRPO_CLIP_LOW);
        if (!clipped)
            coef[t->row] -= (float)(ratio * advantage * share);
        r->ratio += ratio * share;
        r->ratio_off += fabs(ratio - 1) * share;
        r->entropy += (double)entropy[t->row] * share;
        r->clip_rate += clipped ? share : 0;
    }
}

static void compute(model_trainer *trainer, const batch *b, double scale, grpo_report *r)
{
    float logp[MODEL_MAX_LEN], entropy[MODEL_MAX_LEN], coef[MODEL_MAX_LEN];
    r->n_tokens = b->n_targets;
    r->n_sequences = b->n_seqs;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const sequence *s = &b->seqs[i];
        model_trainer_forward(trainer, s->tokens, s->n_tokens, logp, entropy);
        weigh(b, s, logp, entropy, scale, coef, r);
        model_trainer_backward(trainer, coef);
    }
}

dw_status grpo_backward(model_trainer *trainer, played_group *const *groups,
                        size_t n_groups, grpo_report *report, dw_error *err)
{
    size_t n_games = 0, n_guesses = 0, at = 0;
    for (size_t k = 0; k < n_groups; k++)
        n_games += groups[k]->n_games;
    if (n_games == 0)
        return wordle_fail(err, DW_INVALID, "a batch", "has no games");
    grpo_count(report, groups, n_groups);
    batch b = {0};
    advantages *advantage = calloc(n_games, sizeof *advantage);
    dw_status status = DW_OK;
    /* at worst a sequence for each guess, and one for the game */
    b.seqs = calloc(n_games * (GAME_MAX_GUESSES + 1), sizeof *b.seqs);
    if (!advantage || !b.seqs)
        status = wordle_fail(err, DW_NO_MEMORY, "a batch", "out of memory");
    double squares = 0;
    for (size_t k = 0; status == DW_OK && k < n_groups; k++) {
        group_advantages(groups[k], advantage + at, &squares, &n_guesses);
        for (size_t g = 0; g < groups[k]->n_games; g++)
            add_game(&b, &groups[k]->games[g], advantage[at + g]);
        at += groups[k]->n_games;
    }
    if (status == DW_OK && b.n_targets > 0)
        compute(trainer, &b, 1 / (sqrt(squares / (double)n_guesses) + 1e-4), report);
    free(b.seqs);
    free(advantage);
    return status;
}
