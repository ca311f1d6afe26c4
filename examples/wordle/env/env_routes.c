#include "env_routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define GAMES "/games/"

/* ---- what a game looks like ---- */

static json_t *describe(const games_entry *e)
{
    const game *g = &e->game;
    char prompt[GAME_PROMPT_BYTES], id[GAMES_ID_BYTES];
    game_prompt(g, prompt);
    snprintf(id, sizeof id, "%016" PRIx64, e->id);
    json_t *out = json_pack("{s:s,s:s,s:i,s:b,s:b,s:f}", "id", id, "prompt", prompt,
                            "turn", (int)g->turn, "done", game_is_done(g), "won", g->won,
                            "total", g->total);
    if (game_is_done(g))
        json_object_set_new(out, "answer", json_string(g->answer));
    return out;
}

/* ---- requests ---- */

/* Whether NAME is absent, or a whole number in MIN to MAX. */
static bool get_number(web_call *call, const char *name, json_int_t min, json_int_t max,
                       json_int_t *out)
{
    const json_t *value = json_object_get(web_body(call), name);
    if (!value)
        return true;
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= min && *out <= max)
        return true;
    web_refuse(call, 400,
               "'%s' is to be a whole number from %" JSON_INTEGER_FORMAT
               " to %" JSON_INTEGER_FORMAT,
               name, min, max);
    return false;
}

static void open_games(games *g, web_call *call)
{
    json_int_t seed = -1, n = 1;
    if (!get_number(call, "seed", 0, INT64_MAX, &seed) ||
        !get_number(call, "n", 1, ENV_MAX_NEW, &n))
        return;
    json_t *list = json_array();
    const uint64_t now = program_clock_ms();
    for (json_int_t i = 0; i < n; i++) {
        const uint64_t own = seed >= 0 ? (uint64_t)seed : program_random() >> 1;
        const games_entry *e = games_open(g, own, now);
        if (!e) {
            json_decref(list);
            web_refuse(call, 503,
                       "%zu games are going on, which is the most: end some, or try "
                       "later",
                       g->n);
            return;
        }
        json_t *one = describe(e);
        json_object_set_new(one, "seed", json_integer((json_int_t)own));
        json_array_append_new(list, one);
    }
    web_reply(call, 200, json_pack("{s:o}", "games", list));
}

static void guess(games *g, games_entry *e, web_call *call)
{
    const json_t *text = json_object_get(web_body(call), "text");
    if (!json_is_string(text)) {
        web_refuse(call, 400, "'text' is missing: {\"text\": \"crane\"}");
        return;
    }
    if (game_is_done(&e->game)) {
        web_refuse(call, 409, "the game is over");
        return;
    }
    const game_move move =
        games_guess(g, e, json_string_value(text), json_string_length(text));
    json_t *out = describe(e);
    json_object_set_new(out, "feedback", json_string(e->game.feedback[e->game.turn - 1]));
    json_object_set_new(out, "valid", json_boolean(move.valid));
    json_object_set_new(out, "consistent", json_boolean(move.consistent));
    json_object_set_new(out, "reward", json_real(move.reward));
    web_reply(call, 200, out);
}

/* /games/ID and /games/ID/guess */
static void answer_game(games *g, web_call *call)
{
    const char *rest = web_path(call) + strlen(GAMES);
    const size_t n_id = strcspn(rest, "/");
    char id[GAMES_ID_BYTES] = "";
    if (n_id < sizeof id)
        memcpy(id, rest, n_id);
    games_entry *e = games_find(g, id, program_clock_ms());
    const bool is_guess = strcmp(rest + n_id, "/guess") == 0;
    if (!is_guess && rest[n_id] != '\0')
        return;
    if (!e) {
        web_refuse(call, 404,
                   "there is no game '%.40s': it was dropped, or idle for too long",
                   rest);
    } else if (is_guess && web_is(call, "POST", GAMES)) {
        guess(g, e, call);
    } else if (!is_guess && web_is(call, "GET", GAMES)) {
        web_reply(call, 200, describe(e));
    } else if (!is_guess && web_is(call, "DELETE", GAMES)) {
        games_drop(g, e);
        web_reply(call, 200, json_pack("{s:b}", "dropped", 1));
    } else {
        web_refuse(call, 405, "POST /games/ID/guess, GET or DELETE /games/ID");
    }
}

static void answer_words(const games *g, web_call *call)
{
    json_t *list = json_array(), *answers = json_array();
    for (size_t i = 0; i < g->words->n; i++)
        json_array_append_new(list, json_string(g->words->list[i]));
    for (size_t i = 0; i < g->n_answers; i++)
        json_array_append_new(answers, json_string(games_answer(g, i)));
    web_reply(call, 200, json_pack("{s:o,s:o}", "words", list, "answers", answers));
}

static double ratio(double a, uint64_t b)
{
    return b > 0 ? a / (double)b : 0;
}

static void answer_stats(games *g, web_call *call)
{
    const games_stats *s = &g->stats;
    games_expire(g, program_clock_ms());
    web_reply(call, 200,
              json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f}", "games",
                        (json_int_t)s->n_started, "finished", (json_int_t)s->n_finished,
                        "won", (json_int_t)s->n_won, "kept", (json_int_t)g->n, "guesses",
                        (json_int_t)s->n_guesses, "invalid", (json_int_t)s->n_invalid,
                        "win_rate", ratio((double)s->n_won, s->n_finished), "mean_reward",
                        ratio(s->total_reward, s->n_finished), "mean_turns_to_win",
                        ratio((double)s->n_turns, s->n_won)));
}

void env_answer(void *context, web_call *call)
{
    games *g = context;
    if (web_is(call, "POST", "/games"))
        open_games(g, call);
    else if (strncmp(web_path(call), GAMES, strlen(GAMES)) == 0)
        answer_game(g, call);
    else if (web_is(call, "GET", "/words"))
        answer_words(g, call);
    else if (web_is(call, "GET", "/stats"))
        answer_stats(g, call);
    else if (web_is(call, "GET", "/health"))
        web_reply(call, 200, json_pack("{s:s}", "status", "ok"));
}
