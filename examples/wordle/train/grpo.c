#include "grpo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

/* The end of the line after a word is not in the text of the game, which goes on with the
 * feedback. If the model was this sure of it, there is nothing to learn; otherwise the
 * guess gets its own sequence. */
#define SURE_LOGP (-0.1f)

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

/* A token of a guess, in the batch's row that predicts it. */
typedef struct target {
    size_t row;
    float logp; /* when it was sampled */
    float advantage;
} target;

typedef struct batch {
    int32_t *tokens;
    size_t n_tokens;
    uint32_t *lengths;
    size_t n_seqs;
    target *targets;
    size_t n_targets;
} batch;

static bool batch_reserve(batch *b, size_t n_games)
{
    /* at worst a sequence for each guess, and one for the game */
    size_t n_seqs = n_games * (GAME_MAX_GUESSES + 1);
    b->tokens = malloc(n_seqs * GAME_MAX_TOKENS * sizeof *b->tokens);
    b->lengths = malloc(n_seqs * sizeof *b->lengths);
    b->targets =
        malloc(n_games * GAME_MAX_GUESSES * GUESS_MAX_TOKENS * sizeof *b->targets);
    return b->tokens && b->lengths && b->targets;
}

static void batch_release(batch *b)
{
    free(b->tokens);
    free(b->lengths);
    free(b->targets);
}

static void add_targets(batch *b, size_t start, const played_guess *guess, uint32_t first,
                        uint32_t end, float advantage)
{
    for (uint32_t i = first; i < end; i++)
        b->targets[b->n_targets++] = (target){
            .row = start + guess->n_before + i - 1,
            .logp = guess->logp[i],
            .advantage = advantage,
        };
}

static size_t add_sequence(batch *b, const played_game *game, const played_guess *last)
{
    size_t start = b->n_tokens;
    memcpy(b->tokens + start, game->tokens, last->n_before * sizeof(int32_t));
    memcpy(b->tokens + start + last->n_before, last->tokens,
           last->n_tokens * sizeof(int32_t));
    b->lengths[b->n_seqs++] = last->n_before + last->n_tokens;
    b->n_tokens += last->n_before + last->n_tokens;
    return start;
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
    size_t start = add_sequence(b, game, last);
    add_targets(b, start, last, 0, last->n_tokens, advantage[game->n_guesses - 1]);
    for (uint32_t t = 0; t + 1 < game->n_guesses; t++) {
        const played_guess *guess = &game->guesses[t];
        uint32_t n = n_repeated(game, guess);
        add_targets(b, start, guess, 0, n, advantage[t]);
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

/* Coefficients of the loss; a negative one makes its token likelier. */
static void weigh(const batch *b, const grpo_options *options, const float *logp,
                  const float *entropy, double scale, float *coef, grpo_report *r)
{
    double ratios = 0, off = 0, entropies = 0;
    size_t n_clipped = 0;
    memset(coef, 0, b->n_tokens * sizeof *coef);
    for (size_t i = 0; i < b->n_targets; i++) {
        const target *t = &b->targets[i];
        double ratio = exp((double)fminf(logp[t->row] - t->logp, 3.0f));
        double advantage = (double)t->advantage * scale;
        bool clipped = (advantage > 0 && ratio > 1 + (double)options->clip_high) ||
                       (advantage < 0 && ratio < 1 - (double)options->clip_low);
        if (!clipped)
            coef[t->row] -= (float)(ratio * advantage / (double)b->n_targets);
        ratios += ratio;
        off += fabs(ratio - 1);
        entropies += (double)entropy[t->row];
        n_clipped += clipped;
    }
    r->n_tokens = b->n_targets;
    r->n_sequences = b->n_seqs;
    r->ratio = ratios / (double)b->n_targets;
    r->ratio_off = off / (double)b->n_targets;
    r->entropy = entropies / (double)b->n_targets;
    r->clip_rate = (double)n_clipped / (double)b->n_targets;
}

static dw_status compute(qwen_trainer *trainer, const grpo_options *options,
                         const batch *b, double scale, grpo_report *report, dw_error *err)
{
    float *rows = calloc(3 * b->n_tokens, sizeof *rows);
    if (!rows)
        return wordle_fail(err, DW_NO_MEMORY, "a batch", "out of memory");
    float *logp = rows, *entropy = rows + b->n_tokens, *coef = rows + 2 * b->n_tokens;
    dw_status status = qwen_trainer_forward(trainer, b->tokens, b->lengths, b->n_seqs,
                                            logp, entropy, err);
    if (status == DW_OK) {
        weigh(b, options, logp, entropy, scale, coef, report);
        status = qwen_trainer_backward(trainer, coef, err);
    }
    free(rows);
    return status;
}

dw_status grpo_backward(qwen_trainer *trainer, const grpo_options *options,
                        played_group *const *groups, size_t n_groups, grpo_report *report,
                        dw_error *err)
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
    if (!advantage || !batch_reserve(&b, n_games))
        status = wordle_fail(err, DW_NO_MEMORY, "a batch", "out of memory");
    double squares = 0;
    for (size_t k = 0; status == DW_OK && k < n_groups; k++) {
        group_advantages(groups[k], advantage + at, &squares, &n_guesses);
        for (size_t g = 0; g < groups[k]->n_games; g++)
            add_game(&b, &groups[k]->games[g], advantage[at + g]);
        at += groups[k]->n_games;
    }
    if (status == DW_OK && b.n_targets > 0)
        status = compute(trainer, options, &b,
                         1 / (sqrt(squares / (double)n_guesses) + 1e-4), report, err);
    batch_release(&b);
    free(advantage);
    return status;
}
