/* One game of Wordle: its rules, its text and its rewards.
 *
 * Feedback is a letter for each of the guess: `g` right, `y` elsewhere in the answer, `.`
 * not there. A letter that the guess has more often than the answer is marked as often as
 * the answer has it, greens first, then from the left. A guess that is no word of the
 * list counts, and its feedback is `!!!!!`.
 *
 * The reward of a guess is the sum of
 *
 *     GAME_INVALID      no word of the list
 *     GAME_REPEATED     a word that was guessed before
 *     GAME_NEW_WORD     a word of the list, for the first time
 *     GAME_CONSISTENT   and it is consistent: it could be the answer, by all feedback so
 *                       far; not before there is some, of a word of the list
 *     GAME_GREEN        for each place whose letter became known
 *     GAME_LETTER       for each letter that became known to be in the answer, wherever;
 *                       a second one of the same counts again
 *     GAME_WON          it is the answer
 *     GAME_TURN_LEFT    and for each guess that was not needed
 *
 * Greens and letters are rewarded once each, so their sum depends only on what is known
 * at the end: GAME_GREEN * 5 + GAME_LETTER * 5 after a win. A turn left is worth more
 * than a turn without news can earn, so an earlier win is always worth more.
 */
#ifndef WORDLE_GAME_H
#define WORDLE_GAME_H

#include <stdbool.h>
#include <stddef.h>

/* ---- words: five letters a to z each, sorted ---- */

enum { WORD_LETTERS = 5, WORDS_MAX = 1024 };

typedef char word[WORD_LETTERS + 1];

typedef struct words {
    size_t n;
    word list[WORDS_MAX];
} words;

/* The list of words.txt, which is in the program. */
void words_read(words *out);

/* Whether TEXT, a string, is one of them. */
bool words_have(const words *list, const char *text);

/* ---- games ---- */

#define GAME_INVALID    (-0.2)
#define GAME_REPEATED   (-0.2)
#define GAME_NEW_WORD   0.1
#define GAME_CONSISTENT 0.1
#define GAME_GREEN      0.1
#define GAME_LETTER     0.05
#define GAME_WON        1.0
#define GAME_TURN_LEFT  0.25

enum {
    GAME_GUESSES = 6,
    GAME_PROMPT_BYTES = 7 + GAME_GUESSES * (2 * WORD_LETTERS + 2) + 1,
};

typedef struct game {
    word answer;
    unsigned turn; /* guesses so far */
    bool won;
    double total; /* reward */
    word guesses[GAME_GUESSES];
    word feedback[GAME_GUESSES];
} game;

typedef struct game_move {
    bool valid;
    bool consistent; /* with the feedback so far, and there was some */
    double reward;
} game_move;

void game_feedback(word out, const char *guess, const char *answer);

void game_start(game *g, const char *answer);
bool game_is_done(const game *g);

/* A guess, in a game that is not done: the first line of the N bytes of TEXT. */
game_move game_guess(game *g, const words *list, const char *text, size_t n);

/* The text that a model continues with its next guess: "WORDLE\n", then a line "crane
 * .gy..\n" for each guess. Of one that was no word: its first five characters, `?` for
 * those that are not a to z or are not there. */
void game_prompt(const game *g, char out[GAME_PROMPT_BYTES]);

#endif
