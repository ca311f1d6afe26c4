/* labels: slow
 * The learning alone, in one process and with one thread: games are function calls, and
 * what samples are the trainer's own weights, or those of LAG steps before. The same
 * numbers come out at every run, so what is asserted is not a matter of luck.
 *
 *     learn [WARMUP [STEPS [LR [ANSWERS [SEED [LAG [HIDDEN]]]]]]]
 *
 * Prints the means of every ten steps; exit status 1 if the last tenth is not above the
 * first by more than twice their spread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "game.h"
#include "games.h"
#include "grpo.h"
#include "init_model.h"
#include "program.h"
#include "warmup.h"

enum { N_GROUPS = 8, N_GAMES = 8, MAX_LAG = 16, MAX_STEPS = 2000, WARMUP_GAMES = 32 };

typedef struct policy {
    qwen_config config;
    qwen_session *session;
    tokenizer *tok;
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

/* One guess: the prompt is new to the session but for what it holds. */
static size_t guess(policy *p, const qwen_weights *weights, uint32_t seq,
                    played_game *out, const char *prompt, char *text)
{
    dw_error err;
    played_guess *g = &out->guesses[out->n_guesses];
    int32_t ids[GAME_MAX_TOKENS];
    uint32_t seqs[GAME_MAX_TOKENS];
    bool want[GAME_MAX_TOKENS] = {false};
    float logits[1024];
    size_t n = tokenizer_encode(p->tok, prompt, strlen(prompt), ids, GAME_MAX_TOKENS);
    memcpy(out->tokens, ids, n * sizeof ids[0]);
    out->n_tokens = g->n_before = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        seqs[i] = seq;
    want[n - 1] = true;
    qwen_session_reset(p->session, seq);
    check(qwen_session_step(p->session, weights, seqs, ids, want, n, logits, &err), &err);
    size_t n_text = 0;
    for (g->n_tokens = 0; g->n_tokens < GUESS_MAX_TOKENS;) {
        int32_t token = qwen_sample(logits, p->config.n_vocab, 1, 1, &p->random,
                                    &g->logp[g->n_tokens], NULL);
        g->tokens[g->n_tokens++] = token;
        char c = '?';
        tokenizer_decode(p->tok, &token, 1, &c, 1);
        if (c == '\n' || g->n_tokens == GUESS_MAX_TOKENS)
            break;
        text[n_text++] = c;
        check(qwen_session_step(p->session, weights, &seq, &token, NULL, 1, logits, &err),
              &err);
    }
    return n_text;
}

static played_group *play(policy *p, const qwen_weights *weights, const char *answer)
{
    played_group *group = played_group_new(N_GAMES);
    for (size_t i = 0; group && i < N_GAMES; i++) {
        played_game *out = &group->games[i];
        game g;
        game_start(&g, answer);
        while (!game_is_done(&g)) {
            char prompt[GAME_PROMPT_BYTES], text[GUESS_MAX_TOKENS];
            game_prompt(&g, prompt);
            size_t n = guess(p, weights, 0, out, prompt, text);
            game_move move = game_guess(&g, &p->list, text, n);
            out->guesses[out->n_guesses].reward = (float)move.reward;
            out->guesses[out->n_guesses++].valid = move.valid;
        }
        out->won = g.won;
    }
    return group;
}

/* The weights as they are now, in memory of their own. */
static dw_tensor *copy_weights(const qwen_trainer *trainer, dw_tensor *into, size_t *n)
{
    const dw_tensor *now = qwen_trainer_weights(trainer, n);
    if (!into) {
        into = malloc(*n * sizeof *into);
        for (size_t i = 0; into && i < *n; i++) {
            into[i] = now[i];
            into[i].data = malloc(now[i].n_bytes);
        }
    }
    for (size_t i = 0; into && i < *n; i++)
        memcpy(into[i].data, now[i].data, now[i].n_bytes);
    return into;
}

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static double argument(int argc, char **argv, int i, double otherwise)
{
    return argc > i ? strtod(argv[i], NULL) : otherwise;
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

int main(int argc, char **argv)
{
    const size_t n_warmup = (size_t)argument(argc, argv, 1, 300);
    const size_t n_steps = (size_t)fmin(argument(argc, argv, 2, 40), MAX_STEPS);
    const float lr = (float)argument(argc, argv, 3, 6e-4);
    const size_t n_answers = (size_t)argument(argc, argv, 4, 8);
    const uint64_t seed = (uint64_t)argument(argc, argv, 5, 1);
    const size_t lag = (size_t)fmin(argument(argc, argv, 6, 2), MAX_LAG - 1);
    const unsigned n_hidden = (unsigned)argument(argc, argv, 7, 64);
    static double rewards[MAX_STEPS];
    setvbuf(stdout, NULL, _IOLBF, 0);
    char dir[] = "/tmp/wordle-learn-XXXXXX", command[64];
    dw_error err = {0};
    policy p = {.random = seed};
    qwen_trainer *trainer = NULL;
    warmup *w = NULL;
    if (!mkdtemp(dir))
        return 2;
    check(init_model(dir, n_hidden, 2, seed, &err), &err);
    check(qwen_config_read(&p.config, dir, &err), &err);
    check(tokenizer_open(&p.tok, dir, &err), &err);
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command) != 0)
        return 2;
    check(words_open(&p.list, NULL, &err), &err);
    check(qwen_session_new(&p.session, &p.config, 1, 128, 1, &err), &err);
    check(qwen_trainer_new(&trainer, &p.config, 1, &err), &err);
    qwen_trainer_init(trainer, seed);
    check(warmup_new(&w, &p.list, p.tok, WARMUP_GAMES, seed, &err), &err);
    for (size_t i = 0; i < n_warmup; i++) {
        double loss;
        const float rise = i < 20 ? (float)(i + 1) / 20 : 1;
        const qwen_adamw adamw = {3e-3f * rise * (1 - 0.9f * (float)i / (float)n_warmup),
                                  0.9f,
                                  0.95f,
                                  1e-8f,
                                  0,
                                  1};
        check(warmup_backward(w, trainer, &loss, &err), &err);
        qwen_trainer_step(trainer, &adamw);
        if ((i + 1) % 50 == 0)
            printf("warm-up %zu: loss %.3f, %.1f s\n", i + 1, loss, seconds());
    }
    dw_tensor *kept[MAX_LAG] = {NULL};
    qwen_weights *bound[MAX_LAG] = {NULL};
    grpo_report sum = {0};
    double played_s = 0;
    for (size_t i = 0; i < n_steps; i++) {
        size_t n, slot = i % (lag + 1), from = i < lag ? 0 : (i - lag) % (lag + 1);
        kept[slot] = copy_weights(trainer, kept[slot], &n);
        if (!bound[slot])
            check(qwen_weights_bind(&bound[slot], &p.config, kept[slot], n, &err), &err);
        played_group *groups[N_GROUPS];
        const double began_s = seconds();
        for (size_t k = 0; k < N_GROUPS; k++) {
            const size_t at = program_next_random(&p.random) % n_answers;
            /* answers all over the list, as the environment takes them */
            groups[k] = play(&p, bound[from], p.list.list[at * p.list.n / n_answers]);
        }
        played_s += seconds() - began_s;
        const grpo_options options = {0.2f, 0.28f};
        const qwen_adamw adamw = {lr, 0.9f, 0.95f, 1e-8f, 0, 1};
        grpo_report r;
        check(grpo_backward(trainer, &options, groups, N_GROUPS, &r, &err), &err);
        qwen_trainer_step(trainer, &adamw);
        for (size_t k = 0; k < N_GROUPS; k++)
            free(groups[k]);
        rewards[i] = r.reward;
        sum.reward += r.reward / 10;
        sum.win_rate += r.win_rate / 10;
        sum.invalid_rate += r.invalid_rate / 10;
        if ((i + 1) % 10 == 0) {
            printf("step %zu: reward %.3f, won %.1f %%, invalid %.1f %%; entropy %.3f, "
                   "ratio off %.4f, %zu sequences, %.1f s (%.1f played)\n",
                   i + 1, sum.reward, 100 * sum.win_rate, 100 * sum.invalid_rate,
                   r.entropy, r.ratio_off, r.n_sequences, seconds(), played_s);
            sum = (grpo_report){0};
        }
    }
    double first, first_spread, last, last_spread;
    const size_t tenth = n_steps / 10;
    mean_of(rewards, tenth, &first, &first_spread);
    mean_of(rewards + n_steps - tenth, tenth, &last, &last_spread);
    printf("first tenth %.3f +- %.3f, last tenth %.3f +- %.3f\n", first, first_spread,
           last, last_spread);
    for (size_t i = 0; i <= lag; i++) {
        size_t n;
        qwen_trainer_weights(trainer, &n);
        for (size_t k = 0; kept[i] && k < n; k++)
            free(kept[i][k].data);
        free(kept[i]);
        qwen_weights_free(bound[i]);
    }
    warmup_free(w);
    qwen_trainer_free(trainer);
    qwen_session_free(p.session);
    words_release(&p.list);
    tokenizer_close(p.tok);
    return last - first > 2 * fmax(first_spread, last_spread) ? 0 : 1;
}
