#include "warmup.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "game.h"
#include "program.h"

enum { MAX_TEXT = GAME_PROMPT_BYTES + WORD_LETTERS + 1 };

struct warmup {
    const words *list;
    const tokenizer *tok;
    size_t n_games;
    uint64_t random;
    int32_t *tokens; /* [n_games * MAX_TEXT] */
    uint32_t *lengths;
    float *logp, *coef;
};

dw_status warmup_new(warmup **out, const words *list, const tokenizer *tok,
                     size_t n_games, uint64_t seed, dw_error *err)
{
    warmup *w = calloc(1, sizeof *w);
    if (w) {
        *w = (warmup){list, tok, n_games, seed, NULL, NULL, NULL, NULL};
        w->tokens = malloc(n_games * MAX_TEXT * sizeof *w->tokens);
        w->lengths = malloc(n_games * sizeof *w->lengths);
        w->logp = malloc(n_games * MAX_TEXT * sizeof *w->logp);
        w->coef = malloc(n_games * MAX_TEXT * sizeof *w->coef);
    }
    if (!w || !w->tokens || !w->lengths || !w->logp || !w->coef) {
        warmup_free(w);
        return wordle_fail(err, DW_NO_MEMORY, "the warm-up", "out of memory");
    }
    *out = w;
    return DW_OK;
}

void warmup_free(warmup *w)
{
    if (!w)
        return;
    free(w->tokens);
    free(w->lengths);
    free(w->logp);
    free(w->coef);
    free(w);
}

static const char *random_word(warmup *w)
{
    return w->list->list[program_next_random(&w->random) % w->list->n];
}

/* A game, mostly of six guesses, because a long one shows more words. The last one ends
 * like a model's: with the line end and no feedback. */
static size_t random_game(warmup *w, char text[MAX_TEXT])
{
    game g;
    game_start(&g, random_word(w));
    unsigned n_before = (unsigned)(program_next_random(&w->random) % (4 * GAME_GUESSES));
    if (n_before >= GAME_GUESSES)
        n_before = GAME_GUESSES - 1;
    while (g.turn < n_before && !game_is_done(&g))
        game_guess(&g, w->list, random_word(w), WORD_LETTERS);
    game_prompt(&g, text);
    size_t n = strlen(text);
    memcpy(text + n, random_word(w), WORD_LETTERS);
    text[n + WORD_LETTERS] = '\n';
    return n + WORD_LETTERS + 1;
}

/* The tokens to learn: the letters of every guess, and the end of the last line. */
static bool is_target(size_t at, size_t n_head, size_t n_text)
{
    const size_t n_line = 2 * WORD_LETTERS + 2;
    return at == n_text - 1 || (at >= n_head && (at - n_head) % n_line < WORD_LETTERS);
}

dw_status warmup_backward(warmup *w, qwen_trainer *trainer, double *loss, dw_error *err)
{
    const size_t n_head = strlen("WORDLE\n");
    size_t n_tokens = 0, n_targets = 0;
    for (size_t g = 0; g < w->n_games; g++) {
        char text[MAX_TEXT];
        size_t n = random_game(w, text);
        if (tokenizer_encode(w->tok, text, n, w->tokens + n_tokens, n) != n)
            return wordle_fail(err, DW_UNSUPPORTED, "tokenizer.json",
                               "has no token for each letter; wordle-train --init makes "
                               "one that does");
        for (size_t i = 0; i < n; i++) {
            bool wanted = i + 1 < n && is_target(i + 1, n_head, n);
            w->coef[n_tokens + i] = wanted ? -1 : 0;
            n_targets += wanted;
        }
        w->lengths[g] = (uint32_t)n;
        n_tokens += n;
    }
    for (size_t i = 0; i < n_tokens; i++)
        w->coef[i] /= (float)n_targets;
    dw_status status = qwen_trainer_forward(trainer, w->tokens, w->lengths, w->n_games,
                                            w->logp, NULL, err);
    if (status == DW_OK)
        status = qwen_trainer_backward(trainer, w->coef, err);
    *loss = 0;
    for (size_t i = 0; status == DW_OK && i < n_tokens; i++)
        *loss += (double)(w->coef[i] * w->logp[i]);
    return status;
}
