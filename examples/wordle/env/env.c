/* wordle-env: the environment. It plays games over HTTP, and does not depend on models.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "game.h"
#include "program.h"
#include "web.h"

static const char help[] =
    "wordle-env plays Wordle over HTTP, many games at once.\n"
    "\n"
    "    wordle-env [--listen HOST:PORT] [--answers N]\n"
    "\n"
    "  --listen HOST:PORT  where; port 0 is any that is free (127.0.0.1:8100)\n"
    "  --answers N         only N of the words, spread over the list, are answers\n"
    "\n"
    "Once it listens it says so in a line: listening on http://127.0.0.1:8100\n"
    "It ends on SIGTERM or SIGINT. Exit status: 0, 1 after a failure, 2 for wrong use.\n"
    "\n"
    "Example:\n"
    "    wordle-env &\n"
    "    curl -d '{\"seed\":7}' http://127.0.0.1:8100/games\n"
    "    curl -d '{\"text\":\"crane\"}' http://127.0.0.1:8100/games/ID/guess\n";

enum { MAX_BODY = 64 << 10, MAX_NEW = 1024, N_PLACES = 1 << 14 };

/* New games take the places of the oldest ones. */
typedef struct place {
    uint64_t id; /* the place is its remainder; 0: never used */
    game game;
} place;

typedef struct env {
    words words;
    uint64_t n_answers;
    uint64_t n_games;
    place places[N_PLACES];
} env;

static const char *answer_of(const env *e, size_t i)
{
    return e->words.list[i * e->words.n / e->n_answers];
}

/* The answer depends only on SEED and the words. */
static place *open_game(env *e, uint64_t seed)
{
    const uint64_t at = e->n_games++ % N_PLACES;
    place *p = &e->places[at];
    do
        p->id = program_random() / N_PLACES * N_PLACES + at;
    while (p->id == 0);
    game_start(&p->game, answer_of(e, program_next_random(&seed) % e->n_answers));
    return p;
}

static place *find_game(env *e, const char *hex, size_t n)
{
    char text[17] = "", *end;
    if (n != 16)
        return NULL;
    memcpy(text, hex, n);
    const uint64_t id = strtoull(text, &end, 16);
    place *p = &e->places[id % N_PLACES];
    return *end == '\0' && id != 0 && p->id == id ? p : NULL;
}

static json_t *describe(const place *p)
{
    const game *g = &p->game;
    char prompt[GAME_PROMPT_BYTES], id[17];
    game_prompt(g, prompt);
    snprintf(id, sizeof id, "%016" PRIx64, p->id);
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
    web_refuse(call, 400, "'%s' is to be a whole number from %lld to %lld", name,
               (long long)min, (long long)max);
    return false;
}

static void answer_new(env *e, web_call *call)
{
    json_int_t seed = -1, n = 1;
    if (!get_number(call, "seed", 0, INT64_MAX, &seed) ||
        !get_number(call, "n", 1, MAX_NEW, &n))
        return;
    json_t *list = json_array();
    for (json_int_t i = 0; i < n; i++)
        json_array_append_new(
            list, describe(open_game(e, seed >= 0 ? (uint64_t)seed : program_random())));
    web_reply(call, 200, json_pack("{s:o}", "games", list));
}

static void answer_guess(env *e, web_call *call, place *p)
{
    const json_t *text = json_object_get(web_body(call), "text");
    if (!json_is_string(text)) {
        web_refuse(call, 400, "'text' is missing: {\"text\": \"crane\"}");
        return;
    }
    if (game_is_done(&p->game)) {
        web_refuse(call, 409, "the game is over");
        return;
    }
    const game_move move = game_guess(&p->game, &e->words, json_string_value(text),
                                      json_string_length(text));
    json_t *out = describe(p);
    json_object_set_new(out, "feedback", json_string(p->game.feedback[p->game.turn - 1]));
    json_object_set_new(out, "valid", json_boolean(move.valid));
    json_object_set_new(out, "consistent", json_boolean(move.consistent));
    json_object_set_new(out, "reward", json_real(move.reward));
    web_reply(call, 200, out);
}

static void answer_words(const env *e, web_call *call)
{
    json_t *list = json_array(), *answers = json_array();
    for (size_t i = 0; i < e->words.n; i++)
        json_array_append_new(list, json_string(e->words.list[i]));
    for (size_t i = 0; i < e->n_answers; i++)
        json_array_append_new(answers, json_string(answer_of(e, i)));
    web_reply(call, 200, json_pack("{s:o,s:o}", "words", list, "answers", answers));
}

static void answer(void *context, web_call *call)
{
    static const char games[] = "/games/";
    env *e = context;
    const char *id = web_path(call) + strlen(games);
    if (web_is(call, "POST", "/games")) {
        answer_new(e, call);
    } else if (strcmp(web_method(call), "POST") == 0 &&
               strncmp(web_path(call), games, strlen(games)) == 0 &&
               strcmp(id + strcspn(id, "/"), "/guess") == 0) {
        place *p = find_game(e, id, strcspn(id, "/"));
        if (p)
            answer_guess(e, call, p);
        else
            web_refuse(call, 404, "there is no game '%.40s', or it was dropped", id);
    } else if (web_is(call, "GET", "/words")) {
        answer_words(e, call);
    } else if (web_is(call, "GET", "/health")) {
        web_reply(call, 200, json_pack("{s:s}", "status", "ok"));
    }
}

int main(int argc, char **argv)
{
    static env e; /* large */
    const char *listen = "127.0.0.1:8100";
    dw_error err;
    web *server;
    words_read(&e.words);
    e.n_answers = e.words.n;
    const program_option options[] = {
        {.name = "listen", .text = &listen},
        {.name = "answers", .number = &e.n_answers, .min = 1, .max = e.words.n},
    };
    program_options("wordle-env", help, options, sizeof options / sizeof *options, argc,
                    argv);
    program_block_signals();
    if (web_start(&server, listen, MAX_BODY, answer, &e, &err) != DW_OK)
        return program_fail("wordle-env", &err);
    printf("listening on %s\n", web_url(server));
    fflush(stdout);
    program_wait();
    web_stop(server);
    return 0;
}
