#include "warmup.h"

#include <string.h>

#include "program.h"

enum { MAX_TEXT = GAME_PROMPT_BYTES + WORD_LETTERS + 1 };

static const char *random_word(const words *list, uint64_t *random)
{
    return list->list[program_next_random(random) % list->n];
}

/* A game, mostly of six guesses, because a long one shows more words. The last one ends
 * like a model's: with the line end and no feedback. */
static void random_game(const words *list, uint64_t *random, char text[MAX_TEXT])
{
    game g;
    game_start(&g, random_word(list, random));
    unsigned n_before = (unsigned)(program_next_random(random) % (4 * GAME_GUESSES));
    if (n_before >= GAME_GUESSES)
        n_before = GAME_GUESSES - 1;
    while (g.turn < n_before && !game_is_done(&g))
        game_guess(&g, list, random_word(list, random), WORD_LETTERS);
    game_prompt(&g, text);
    strcat(text, random_word(list, random));
    strcat(text, "\n");
}

/* The tokens to learn: the letters of every guess, and the end of the last line. */
static bool is_target(size_t at, size_t n_text)
{
    const size_t n_head = strlen("WORDLE\n"), n_line = 2 * WORD_LETTERS + 2;
    return at == n_text - 1 || (at >= n_head && (at - n_head) % n_line < WORD_LETTERS);
}

double warmup_backward(model_trainer *trainer, const words *list, size_t n_games,
                       uint64_t *random)
{
    const uint64_t began = *random;
    double loss = 0;
    size_t n_targets = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first one counts the targets */
        *random = began;
        for (size_t g = 0; g < n_games; g++) {
            char text[MAX_TEXT];
            int32_t tokens[MODEL_MAX_LEN];
            float logp[MODEL_MAX_LEN], coef[MODEL_MAX_LEN] = {0};
            size_t n;
            random_game(list, random, text);
            model_encode(text, tokens, MODEL_MAX_LEN, &n);
            for (size_t i = 1; i < n; i++)
                if (is_target(i, n) && pass == 0)
                    n_targets++;
                else if (is_target(i, n))
                    coef[i - 1] = -1 / (float)n_targets;
            if (pass == 0)
                continue;
            model_trainer_forward(trainer, tokens, n, logp, NULL);
            model_trainer_backward(trainer, coef);
            for (size_t i = 0; i < n; i++)
                loss += (double)(coef[i] * logp[i]);
        }
    }
    return loss;
}

float warmup_rate(uint64_t step, uint64_t n_steps)
{
    const float rise = step < 20 ? (float)(step + 1) / 20 : 1;
    return 3e-3f * rise * (1 - 0.9f * (float)step / (float)n_steps);
}
