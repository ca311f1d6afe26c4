#include "game.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LETTERS = 26 };

/* words.txt, by cmake/embed.cmake */
extern const unsigned char wordle_words[];
extern const size_t wordle_words_bytes;

#define INVALID_FEEDBACK "!!!!!"

/* ---- words ---- */

/* The file has a word a line, sorted (tests/wordle/words.sh). */
void words_read(words *out)
{
    const size_t n_line = WORD_LETTERS + 1;
    memset(out, 0, sizeof *out);
    for (; out->n < WORDS_MAX && (out->n + 1) * n_line <= wordle_words_bytes; out->n++)
        memcpy(out->list[out->n], wordle_words + out->n * n_line, WORD_LETTERS);
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(word));
}

bool words_have(const words *list, const char *text)
{
    return strlen(text) == WORD_LETTERS &&
           bsearch(text, list->list, list->n, sizeof(word), compare) != NULL;
}

/* ---- rules ---- */

void game_feedback(word out, const char *guess, const char *answer)
{
    unsigned left[N_LETTERS] = {0};
    for (int i = 0; i < WORD_LETTERS; i++)
        if (guess[i] != answer[i])
            left[answer[i] - 'a']++;
    for (int i = 0; i < WORD_LETTERS; i++) {
        unsigned *n = &left[guess[i] - 'a'];
        if (guess[i] == answer[i])
            out[i] = 'g';
        else if (*n > 0 && (*n)--)
            out[i] = 'y';
        else
            out[i] = '.';
    }
    out[WORD_LETTERS] = '\0';
}

void game_start(game *g, const char *answer)
{
    *g = (game){0};
    memcpy(g->answer, answer, WORD_LETTERS);
}

bool game_is_done(const game *g)
{
    return g->won || g->turn == GAME_GUESSES;
}

static bool was_valid(const game *g, unsigned turn)
{
    return g->feedback[turn][0] != '!';
}

/* ---- rewards ---- */

static bool was_guessed(const game *g, const char *guess)
{
    for (unsigned i = 0; i < g->turn; i++)
        if (was_valid(g, i) && strcmp(g->guesses[i], guess) == 0)
            return true;
    return false;
}

/* Whether GUESS, as the answer, would have given the same feedback, and there was some.
 */
static bool is_consistent(const game *g, const char *guess)
{
    bool any = false;
    for (unsigned i = 0; i < g->turn; i++) {
        word would_be;
        if (!was_valid(g, i))
            continue;
        game_feedback(would_be, g->guesses[i], guess);
        if (strcmp(would_be, g->feedback[i]) != 0)
            return false;
        any = true;
    }
    return any;
}

/* The reward for what all guesses so far have shown of the answer. */
static double known(const game *g)
{
    bool green[WORD_LETTERS] = {false};
    unsigned letters[N_LETTERS] = {0}, n_green = 0, n_letters = 0;
    for (unsigned turn = 0; turn < g->turn; turn++) {
        unsigned seen[N_LETTERS] = {0};
        if (!was_valid(g, turn))
            continue;
        for (int i = 0; i < WORD_LETTERS; i++) {
            const int letter = g->guesses[turn][i] - 'a';
            green[i] = green[i] || g->feedback[turn][i] == 'g';
            if (g->feedback[turn][i] != '.' && ++seen[letter] > letters[letter])
                letters[letter] = seen[letter];
        }
    }
    for (int i = 0; i < WORD_LETTERS; i++)
        n_green += green[i];
    for (int i = 0; i < N_LETTERS; i++)
        n_letters += letters[i];
    return GAME_GREEN * n_green + GAME_LETTER * n_letters;
}

static double play(game *g, const char *guess, bool consistent)
{
    const double before = known(g);
    double reward = was_guessed(g, guess) ? GAME_REPEATED : GAME_NEW_WORD;
    if (consistent) /* a repeated guess never is */
        reward += GAME_CONSISTENT;
    memcpy(g->guesses[g->turn], guess, sizeof(word));
    game_feedback(g->feedback[g->turn], guess, g->answer);
    g->turn++;
    g->won = strcmp(guess, g->answer) == 0;
    reward += known(g) - before;
    if (g->won)
        reward += GAME_WON + GAME_TURN_LEFT * (GAME_GUESSES - g->turn);
    return reward;
}

/* ---- a guess ---- */

static double play_invalid(game *g, const char *text, size_t n)
{
    for (size_t i = 0; i < WORD_LETTERS; i++)
        g->guesses[g->turn][i] =
            i < n && text[i] >= 'a' && text[i] <= 'z' ? text[i] : '?';
    memcpy(g->feedback[g->turn], INVALID_FEEDBACK, sizeof(word));
    g->turn++;
    return GAME_INVALID;
}

game_move game_guess(game *g, const words *list, const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    const size_t n_line = end ? (size_t)(end - text) : n;
    word guess = "";
    if (n_line == WORD_LETTERS)
        memcpy(guess, text, WORD_LETTERS);
    game_move move = {.valid = words_have(list, guess)};
    move.consistent = move.valid && is_consistent(g, guess);
    move.reward =
        move.valid ? play(g, guess, move.consistent) : play_invalid(g, text, n_line);
    g->total += move.reward;
    return move;
}

void game_prompt(const game *g, char out[GAME_PROMPT_BYTES])
{
    int n = snprintf(out, GAME_PROMPT_BYTES, "WORDLE\n");
    for (unsigned i = 0; i < g->turn; i++)
        n += snprintf(out + n, (size_t)(GAME_PROMPT_BYTES - n), "%s %s\n", g->guesses[i],
                      g->feedback[i]);
}
