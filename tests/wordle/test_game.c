/* The rules of the game against an independent implementation, the rewards of guesses,
 * and the stored games. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "games.h"
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

static void known_cases(void **state)
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

static void every_pair_of_the_list(void **state)
{
    (void)state;
    for (size_t i = 0; i < list.n; i++)
        for (size_t j = 0; j < list.n; j++)
            check_pair(list.list[i], list.list[j]);
}

static void spell(word out, unsigned number)
{
    for (int i = 0; i < 5; i++, number /= 3)
        out[i] = (char)('a' + number % 3);
    out[5] = '\0';
}

static void every_pair_of_three_letters(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 243; i++)
        for (unsigned j = 0; j < 243; j++) {
            word guess, answer;
            spell(guess, i);
            spell(answer, j);
            check_pair(guess, answer);
        }
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

static void a_game(void **state)
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
static void consistent(void **state)
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

static void what_is_no_guess(void **state)
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
static void random_games(void **state)
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

/* ---- stored games ---- */

static games_entry *find(games *g, const games_entry *e, uint64_t now)
{
    char id[32];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)e->id);
    return games_find(g, id, now);
}

static void seeds(void **state)
{
    enum { N_ANSWERS = 20 };
    games g;
    bool seen[MAX_WORDS] = {false};
    size_t n_seen = 0;
    (void)state;
    assert_int_equal(games_init(&g, &list, N_ANSWERS, 5000, NULL), DW_OK);
    for (uint64_t seed = 0; seed < 1000; seed++) {
        const games_entry *a = games_open(&g, seed, 0), *b = games_open(&g, seed, 0);
        assert_string_equal(a->game.answer, b->game.answer);
        assert_true(a->id != b->id);
        for (size_t i = 0; i < list.n; i++)
            if (strcmp(list.list[i], a->game.answer) == 0 && !seen[i]) {
                seen[i] = true;
                n_seen++;
            }
    }
    assert_int_equal(n_seen, N_ANSWERS);
    games_release(&g);
}

static void room_and_time(void **state)
{
    games g;
    (void)state;
    assert_int_equal(games_init(&g, &list, 0, 3, NULL), DW_OK);
    games_entry *first = games_open(&g, 1, 0);
    games_entry *second = games_open(&g, 2, 0);
    assert_non_null(games_open(&g, 3, 5000));
    assert_null(games_open(&g, 4, 5000)); /* all are in progress */
    games_guess(&g, second, second->game.answer, 5);
    games_entry *fourth = games_open(&g, 4, 5000); /* replaces the finished one */
    assert_non_null(fourth);
    assert_int_equal(g.n, 3);
    assert_ptr_equal(find(&g, first, 6000), first); /* used, so its time starts again */
    assert_ptr_equal(find(&g, first, 5000 + GAMES_IDLE_MS), first);
    assert_int_equal(g.n, 3);
    const uint64_t late = 5001 + GAMES_IDLE_MS;
    games_expire(&g, late);
    assert_int_equal(g.n, 1);
    assert_null(games_find(&g, "", late));
    assert_null(games_find(&g, "000000000000000g", late));
    assert_null(games_find(&g, "00000000000000000", late));
    games_drop(&g, first);
    assert_int_equal(g.n, 0);
    assert_int_equal(g.stats.n_won, 1);
    games_release(&g);
}

/* ---- words ---- */

static void words_of_a_file(void **state)
{
    static const struct {
        const char *text;
        size_t n; /* 0: refused */
    } cases[] = {
        {"crane\nabout\ncrane\n", 2},
        {"crane", 1},
        {"", 0},
        {"crane\n\nabout\n", 0},
        {"crane\ntoolong\n", 0},
        {"Crane\n", 0},
        {"crane\r\n", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        words some;
        dw_error err;
        char path[] = "/tmp/words.XXXXXX";
        FILE *file = fdopen(mkstemp(path), "w");
        fputs(cases[i].text, file);
        fclose(file);
        dw_status status = words_open(&some, path, &err);
        assert_int_equal(status, cases[i].n > 0 ? DW_OK : DW_INVALID);
        if (status == DW_OK) {
            assert_int_equal(some.n, cases[i].n);
            assert_true(words_have(&some, "crane"));
            words_release(&some);
        }
        remove(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(every_pair_of_the_list),
        cmocka_unit_test(every_pair_of_three_letters),
        cmocka_unit_test(a_game),
        cmocka_unit_test(consistent),
        cmocka_unit_test(what_is_no_guess),
        cmocka_unit_test(random_games),
        cmocka_unit_test(seeds),
        cmocka_unit_test(room_and_time),
        cmocka_unit_test(words_of_a_file),
    };
    if (words_open(&list, NULL, NULL) != DW_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    words_release(&list);
    return rc;
}
