/* labels: slow
 * The learning alone, in one process and with one thread: games are function calls, and
 * what samples are the trainer's own weights, or those of LAG steps before. The same
 * numbers come out at every run, so what is asserted is not a matter of luck.
 *
 * Fails if the last tenth of the steps is not above the first by more than twice their
 * spread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "game.h"
#include "grpo.h"
#include "program.h"
#include "warmup.h"

enum {
    N_WARMUP = 300,
    WARMUP_GAMES = 32,
    N_STEPS = 40,
    N_GROUPS = 8,
    N_GAMES = 8,
    N_ANSWERS = 8,
    LAG = 2,
};

typedef struct policy {
    model_session *session;
    words list;
    uint64_t random;
} policy;

static void check(dw_status status, const dw_error *err)
{
    if (status != DW_OK) {
        fprintf(stderr, "%s: %s\n", err->where, err->text);
        exit(2);
    }
}

/* One guess. */
static size_t guess(policy *p, const model_weights *weights, played_game *out,
                    const char *prompt, char *text)
{
    played_guess *g = &out->guesses[out->n_guesses];
    static float logits[GAME_MAX_TOKENS * MODEL_VOCAB];
    const uint32_t seqs[GAME_MAX_TOKENS] = {0};
    size_t n, n_text = 0;
    if (!model_encode(prompt, out->tokens, GAME_MAX_TOKENS, &n))
        exit(2);
    out->n_tokens = g->n_before = (uint32_t)n;
    model_session_cut(p->session, 0, 0);
    model_session_step(p->session, weights, seqs, out->tokens, n, logits);
    const float *last = logits + (n - 1) * MODEL_VOCAB;
    for (g->n_tokens = 0; g->n_tokens < GUESS_MAX_TOKENS; last = logits) {
        const int32_t token = model_sample(last, 1, &p->random, &g->logp[g->n_tokens]);
        g->tokens[g->n_tokens++] = token;
        if (model_char(token) == '\n' || g->n_tokens == GUESS_MAX_TOKENS)
            break;
        text[n_text++] = model_char(token);
        model_session_step(p->session, weights, seqs, &token, 1, logits);
    }
    return n_text;
}

static played_group *play(policy *p, const model_weights *weights, const char *answer)
{
    played_group *group = played_group_new(N_GAMES);
    for (size_t i = 0; group && i < N_GAMES; i++) {
        played_game *out = &group->games[i];
        game g;
        game_start(&g, answer);
        while (!game_is_done(&g)) {
            char prompt[GAME_PROMPT_BYTES], text[GUESS_MAX_TOKENS];
            game_prompt(&g, prompt);
            size_t n = guess(p, weights, out, prompt, text);
            game_move move = game_guess(&g, &p->list, text, n);
            out->guesses[out->n_guesses].reward = (float)move.reward;
            out->guesses[out->n_guesses++].valid = move.valid;
        }
        out->won = g.won;
    }
    return group;
}

static void mean_of(const double *x, size_t n, double *mean, double *spread)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    *mean = sum / (double)n;
    *spread = sqrt(fmax(0, squares / (double)n - *mean * *mean));
}

/* A step from games of the weights of LAG steps before. Returns the mean reward. */
static double learn(policy *p, model_trainer *trainer, size_t step)
{
    static model_weights kept[LAG + 1];
    dw_error err;
    grpo_report r;
    played_group *groups[N_GROUPS];
    const size_t from = step < LAG ? 0 : (step - LAG) % (LAG + 1);
    /* the first tensor is at the beginning of all */
    model_unpack(&kept[step % (LAG + 1)], model_trainer_weights(trainer)[0].data);
    for (size_t k = 0; k < N_GROUPS; k++) {
        const size_t at = program_next_random(&p->random) % N_ANSWERS;
        /* answers all over the list, as the environment takes them */
        groups[k] = play(p, &kept[from], p->list.list[at * p->list.n / N_ANSWERS]);
    }
    check(grpo_backward(trainer, groups, N_GROUPS, &r, &err), &err);
    model_trainer_step(trainer, 6e-4f);
    for (size_t k = 0; k < N_GROUPS; k++)
        free(groups[k]);
    printf("step %zu: reward %.3f, won %.1f %%, invalid %.1f %%, ratio off %.4f\n", step,
           r.reward, 100 * r.win_rate, 100 * r.invalid_rate, r.ratio_off);
    return r.reward;
}

int main(void)
{
    enum { TENTH = N_STEPS / 10 };
    static policy p = {.random = 1};
    double rewards[N_STEPS], first, first_spread, last, last_spread;
    uint64_t random = 1;
    words_read(&p.list);
    p.session = model_session_new(1);
    model_trainer *trainer = model_trainer_new(1);
    if (!p.session || !trainer)
        return 2;
    for (size_t i = 0; i < N_WARMUP; i++) {
        warmup_backward(trainer, &p.list, WARMUP_GAMES, &random);
        model_trainer_step(trainer, warmup_rate(i, N_WARMUP));
    }
    for (size_t i = 0; i < N_STEPS; i++)
        rewards[i] = learn(&p, trainer, i);
    mean_of(rewards, TENTH, &first, &first_spread);
    mean_of(rewards + N_STEPS - TENTH, TENTH, &last, &last_spread);
    printf("first tenth %.3f +- %.3f, last tenth %.3f +- %.3f\n", first, first_spread,
           last, last_spread);
    model_trainer_free(trainer);
    model_session_free(p.session);
    return last - first > 2 * fmax(first_spread, last_spread) ? 0 : 1;
}
