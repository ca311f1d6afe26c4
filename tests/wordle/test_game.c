/* The rules of the game against an independent implementation, and the rewards. */
#include <math.h>

#include "unit/suite.h"

#include "game.h"
#include "program.h"

static words list;

/* ---- rules ---- */

/* How often C is in TEXT before position N; with ANSWER, only at positions where the two
 * differ. */
static int count(const char *text, const char *answer, int n, char c)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        found += text[i] == c && (!answer || answer[i] != c);
    return found;
}

/* A letter that is not green is yellow if there are fewer of it before, without greens,
 * than the answer has outside the greens. Each position is computed without state. */
static char naive(const char *guess, const char *answer, int i)
{
    const char c = guess[i];
    if (c == answer[i])
        return 'g';
    const int greens = count(guess, NULL, 5, c) - count(guess, answer, 5, c);
    const int in_answer = count(answer, NULL, 5, c);
    return count(guess, answer, i, c) < in_answer - greens ? 'y' : '.';
}

static void check_pair(const char *guess, const char *answer)
{
    word feedback;
    game_feedback(feedback, guess, answer);
    assert_int_equal(strlen(feedback), 5);
    for (int i = 0; i < 5; i++)
        if (feedback[i] != naive(guess, answer, i))
            fail_msg("%s for %s: %s", guess, answer, feedback);
}

TEST(known_cases)
{
    static const char *const cases[][3] = {
        {"crane", "crane", "ggggg"}, {"speed", "erase", "y.yy."},
        {"geese", "these", "..ggg"}, {"allay", "llama", "ygyy."},
        {"aabbb", "bbaaa", "yyyy."}, {"eerie", "there", "y.y.g"},
        {"eeeee", "above", "....g"}, {"abbey", "babes", "yygg."},
        {"sassy", "glass", "yy.g."}, {"fuzzy", "crane", "....."},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        word feedback;
        game_feedback(feedback, cases[i][0], cases[i][1]);
        assert_string_equal(feedback, cases[i][2]);
    }
}

TEST(every_pair_of_the_list)
{
    for (size_t i = 0; i < list.n; i++)
        for (size_t j = 0; j < list.n; j++)
            check_pair(list.list[i], list.list[j]);
}

/* ---- text and rewards ---- */

static double guess(game *g, const char *text)
{
    return game_guess(g, &list, text, strlen(text)).reward;
}

static void near_to(double a, double b)
{
    if (fabs(a - b) > 1e-9)
        fail_msg("%.9f is not %.9f", a, b);
}

TEST(a_game)
{
    char prompt[GAME_PROMPT_BYTES];
    game g;
    (void)state;
    game_start(&g, "crane");
    near_to(guess(&g, "chair"), 0.1 + 0.1 + 3 * 0.05 + 0.1); /* c, a green; r */
    near_to(guess(&g, "xx"), -0.2);
    near_to(guess(&g, "chair"), -0.2);
    near_to(guess(&g, "coral\nwhat follows"), 0.1 + 0.0); /* not consistent: no news */
    game_prompt(&g, prompt);
    assert_string_equal(prompt, "WORDLE\nchair g.g.y\nxx??? !!!!!\nchair g.g.y\n"
                                "coral g.yy.\n");
    /* three greens and two letters are new */
    near_to(guess(&g, "crane"), 0.1 + 0.1 + 3 * 0.1 + 2 * 0.05 + 1.0 + 0.25);
    assert_true(g.won && game_is_done(&g));
    assert_int_equal(g.turn, 5);
}

/* A consistent guess is rewarded only if there is feedback. */
TEST(consistent)
{
    game g;
    (void)state;
    game_start(&g, "crane");
    assert_false(game_guess(&g, &list, "zzzzz", 5).consistent);
    game_move move =
        game_guess(&g, &list, "chair", 5); /* all guesses before were invalid */
    assert_false(move.consistent);
    near_to(move.reward, 0.1 + 2 * 0.1 + 3 * 0.05);
    assert_false(game_guess(&g, &list, "chair", 5).consistent);
    assert_false(game_guess(&g, &list, "coral", 5).consistent);
    assert_true(game_guess(&g, &list, "crane", 5).consistent);
}

TEST(what_is_no_guess)
{
    static const char *const texts[][2] = {
        {"", "?????"},      {"\n", "?????"},           {"cran", "cran?"},
        {"CRANE", "?????"}, {"cranes", "crane"},       {" crane", "?cran"},
        {"zzzzz", "zzzzz"}, {"cr\xc3\xa4ne", "cr??n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        game g;
        game_start(&g, "crane");
        game_move move = game_guess(&g, &list, texts[i][0], strlen(texts[i][0]));
        assert_false(move.valid);
        assert_string_equal(g.guesses[0], texts[i][1]);
        assert_string_equal(g.feedback[0], "!!!!!");
        assert_int_equal(g.turn, 1);
    }
}

/* In random games: at most six guesses, rewards add up, known letters are rewarded once,
 * and winning earlier is worth more. */
TEST(random_games)
{
    uint64_t rng = 1;
    (void)state;
    for (int n = 0; n < 3000; n++) {
        game g;
        double total = 0;
        game_start(&g, list.list[program_next_random(&rng) % list.n]);
        while (!game_is_done(&g)) {
            game now = g, later = g;
            const char *next = list.list[program_next_random(&rng) % list.n];
            guess(&now, g.answer);
            guess(&later, next);
            if (!game_is_done(&later)) {
                guess(&later, g.answer);
                assert_true(later.total < now.total);
            }
            total += guess(&g, next);
        }
        near_to(total, g.total);
        assert_true(g.turn <= GAME_GUESSES);
        game won = {0};
        game_start(&won, g.answer);
        guess(&won, g.answer);
        near_to(won.total, 0.1 + 5 * 0.1 + 5 * 0.05 + 1.0 + 5 * 0.25);
    }
}

int main(void)
{
    words_read(&list);
    return suite_run(NULL, NULL);
}
