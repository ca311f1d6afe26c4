#include "player.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_client.h"
#include "program.h"

enum {
    ID_BYTES = 64,
    PROMPT_BYTES = 256,
    GUESS_BYTES = 64,
    ENV_TIMEOUT_MS = 10000,
    SERVER_TIMEOUT_MS = 30000, /* a server that is paused keeps its requests */
    BREATH_MS = 200,           /* after a failure */
};

struct players {
    const player_options *options;
    atomic_bool stop;
    size_t n_threads;
    pthread_t threads[PLAYERS_MAX_THREADS];

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint64_t
        n_begun; /* groups: the number of one makes its answer, and its first server */
    uint64_t n_failures;
    dw_error last; /* failure */
    size_t n_queued;
    played_group *queue[PLAYERS_MAX_QUEUED];
};

/* A game while it is played. */
typedef struct seat {
    char id[ID_BYTES];
    char prompt[PROMPT_BYTES];
    char guess[GUESS_BYTES];
    bool done;
} seat;

typedef struct player {
    players *all;
    http_client *client;
    uint64_t number; /* of the group */
    size_t server;
    played_group *group;
    seat seats[GROUP_MAX_GAMES];
} player;

/* Also waits, so that a failing server is not asked all the time. */
static void note_failure(players *all, const dw_error *err)
{
    const struct timespec end = program_deadline(BREATH_MS);
    pthread_mutex_lock(&all->lock);
    all->n_failures++;
    all->last = *err;
    while (!atomic_load(&all->stop) &&
           pthread_cond_timedwait(&all->changed, &all->lock, &end) == 0)
        ;
    pthread_mutex_unlock(&all->lock);
}

static bool copy_text(char *out, size_t room, const json_t *object, const char *key)
{
    const json_t *text = json_object_get(object, key);
    size_t n = json_string_length(text);
    if (!json_is_string(text) || n >= room || strlen(json_string_value(text)) != n)
        return false;
    memcpy(out, json_string_value(text), n + 1);
    return true;
}

/* A number that a float can hold. */
static bool is_finite(const json_t *number)
{
    return json_is_number(number) && isfinite((float)json_number_value(number));
}

static dw_status not_understood(const char *url, const char *what, dw_error *err)
{
    return wordle_fail(err, DW_INVALID, url, "answers without a usable '%s'", what);
}

/* ---- the environment ---- */

/* Games of one seed have one answer. */
static dw_status begin_games(player *p, dw_error *err)
{
    char url[1024];
    snprintf(url, sizeof url, "%s/games", p->all->options->env);
    json_t *answer = NULL, *body = json_pack("{s:I, s:I}", "seed", (json_int_t)p->number,
                                             "n", (json_int_t)p->group->n_games);
    dw_status status =
        http_client_ask(p->client, url, body, ENV_TIMEOUT_MS, &answer, err);
    const json_t *games = json_object_get(answer, "games");
    for (size_t i = 0; status == DW_OK && i < p->group->n_games; i++) {
        const json_t *one = json_array_get(games, i);
        seat *s = &p->seats[i];
        if (!copy_text(s->id, ID_BYTES, one, "id") ||
            !copy_text(s->prompt, PROMPT_BYTES, one, "prompt"))
            status = not_understood(url, "games", err);
    }
    json_decref(body);
    json_decref(answer);
    return status;
}

static dw_status tell_guess(player *p, seat *s, played_game *game, dw_error *err)
{
    char url[1024];
    snprintf(url, sizeof url, "%s/games/%s/guess", p->all->options->env, s->id);
    json_t *answer = NULL, *body = json_pack("{s:s}", "text", s->guess);
    if (!body)
        return wordle_fail(err, DW_NO_MEMORY, url, "out of memory");
    dw_status status =
        http_client_ask(p->client, url, body, ENV_TIMEOUT_MS, &answer, err);
    json_decref(body);
    const json_t *reward = json_object_get(answer, "reward");
    if (status == DW_OK &&
        (!is_finite(reward) || !copy_text(s->prompt, PROMPT_BYTES, answer, "prompt")))
        status = not_understood(url, "reward", err);
    if (status == DW_OK) {
        played_guess *guess = &game->guesses[game->n_guesses++];
        guess->reward = (float)json_number_value(reward);
        guess->valid = json_is_true(json_object_get(answer, "valid"));
        guess->consistent = json_is_true(json_object_get(answer, "consistent"));
        game->won = json_is_true(json_object_get(answer, "won"));
        s->done = json_is_true(json_object_get(answer, "done")) ||
                  game->n_guesses == GAME_MAX_GUESSES;
    }
    json_decref(answer);
    return status;
}

/* ---- the rollout servers ---- */

static json_t *completion_request(const player *p, const size_t *open, size_t n)
{
    json_t *prompts = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(prompts, json_string(p->seats[open[i]].prompt));
    /* from the group and the turn, so that samples depend only on the weights */
    uint64_t state = p->number * 8 + p->group->games[open[0]].n_guesses;
    const uint64_t seed = program_next_random(&state) & INT64_MAX;
    return json_pack("{s:s, s:o, s:i, s:f, s:s, s:i, s:b, s:I}", "model", "policy",
                     "prompt", prompts, "max_tokens", GUESS_MAX_TOKENS, "temperature",
                     1.0, "stop", "\n", "logprobs", 0, "return_token_ids", 1, "seed",
                     (json_int_t)seed);
}

/* Versions are labels to engines; here they are numbers. */
static bool read_version(const json_t *choice, uint64_t *version)
{
    const json_t *label = json_object_get(choice, "weight_version");
    char *end = NULL;
    if (json_is_string(label))
        *version = strtoull(json_string_value(label), &end, 10);
    return end && *end == '\0' && end != json_string_value(label);
}

static bool read_tokens(const json_t *choice, played_guess *guess)
{
    const json_t *ids = json_object_get(choice, "token_ids");
    const json_t *logps =
        json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
    size_t n = json_array_size(ids);
    if (n == 0 || n > GUESS_MAX_TOKENS || json_array_size(logps) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i), *logp = json_array_get(logps, i);
        if (!json_is_integer(id) || !is_finite(logp) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= MODEL_VOCAB)
            return false;
        guess->tokens[i] = (int32_t)json_integer_value(id);
        guess->logp[i] = (float)json_number_value(logp);
    }
    guess->n_tokens = (uint32_t)n;
    return true;
}

/* Whether the prompt continues what the game has so far: then one sequence holds all. */
static bool keep_prompt(const seat *s, played_game *game, played_guess *guess)
{
    int32_t ids[GAME_MAX_TOKENS];
    size_t n;
    if (!model_encode(s->prompt, ids, GAME_MAX_TOKENS - GUESS_MAX_TOKENS, &n) || n == 0 ||
        n < game->n_tokens ||
        memcmp(ids, game->tokens, game->n_tokens * sizeof ids[0]) != 0)
        return false;
    memcpy(game->tokens, ids, n * sizeof ids[0]);
    game->n_tokens = guess->n_before = (uint32_t)n;
    return true;
}

static dw_status take_choices(player *p, const char *url, const json_t *answer,
                              const size_t *open, size_t n, dw_error *err)
{
    const json_t *choices = json_object_get(answer, "choices");
    const char *stream = json_string_value(json_object_get(answer, "weight_stream"));
    if (json_array_size(choices) != n)
        return not_understood(url, "choices", err);
    if (stream && strcmp(stream, p->all->options->stream) != 0)
        return wordle_fail(err, DW_CONFLICT, url,
                           "samples with the weights of another stream than %s",
                           p->all->options->stream);
    for (size_t i = 0; i < n; i++) {
        const json_t *choice = json_array_get(choices, i);
        seat *s = &p->seats[open[i]];
        played_game *game = &p->group->games[open[i]];
        played_guess *guess = &game->guesses[game->n_guesses];
        if (!read_version(choice, &guess->version))
            return not_understood(url, "weight_version", err);
        if (!read_tokens(choice, guess))
            return not_understood(url, "token_ids and logprobs", err);
        if (!copy_text(s->guess, GUESS_BYTES, choice, "text"))
            return not_understood(url, "text", err);
        if (!keep_prompt(s, game, guess))
            return wordle_fail(err, DW_UNSUPPORTED, s->prompt,
                               "does not continue the tokens of the game before it");
        if (guess->version < p->group->version)
            p->group->version = guess->version;
    }
    return DW_OK;
}

/* One guess for every game that is open. If a server fails, the next one is tried, until
 * all have had two tries. */
static dw_status guess_all(player *p, const size_t *open, size_t n, dw_error *err)
{
    const player_options *options = p->all->options;
    json_t *body = completion_request(p, open, n);
    dw_status status = DW_UNAVAILABLE;
    for (size_t try = 0; body && try < 2 * options->n_servers; try++) {
        char url[1024];
        json_t *answer = NULL;
        snprintf(url, sizeof url, "%s/v1/completions", options->servers[p->server]);
        status = http_client_ask(p->client, url, body, SERVER_TIMEOUT_MS, &answer, err);
        if (status == DW_OK)
            status = take_choices(p, url, answer, open, n, err);
        json_decref(answer);
        if (status == DW_OK || status == DW_CANCELLED)
            break;
        note_failure(p->all, err);
        p->server = (p->server + 1) % options->n_servers;
    }
    json_decref(body);
    return body ? status : wordle_fail(err, DW_NO_MEMORY, "a prompt", "out of memory");
}

/* ---- a group ---- */

static dw_status play_turn(player *p, size_t *n_open, dw_error *err)
{
    size_t open[GROUP_MAX_GAMES], n = 0;
    for (size_t i = 0; i < p->group->n_games; i++)
        if (!p->seats[i].done)
            open[n++] = i;
    *n_open = n;
    dw_status status = n > 0 ? guess_all(p, open, n, err) : DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = tell_guess(p, &p->seats[open[i]], &p->group->games[open[i]], err);
    return status;
}

static dw_status play_group(player *p, dw_error *err)
{
    const player_options *options = p->all->options;
    pthread_mutex_lock(&p->all->lock);
    const uint64_t number = p->all->n_begun++;
    pthread_mutex_unlock(&p->all->lock);
    p->number = (options->seed * 1000003u + number) & INT64_MAX;
    p->server = number % options->n_servers;
    p->group = played_group_new(options->n_games);
    if (!p->group)
        return wordle_fail(err, DW_NO_MEMORY, "a group", "out of memory");
    memset(p->seats, 0, sizeof p->seats);
    size_t n_open = 1;
    dw_status status = begin_games(p, err);
    while (status == DW_OK && n_open > 0)
        status = play_turn(p, &n_open, err);
    return status;
}

static void queue_group(players *all, played_group *group)
{
    pthread_mutex_lock(&all->lock);
    while (all->n_queued == all->options->n_queued && !atomic_load(&all->stop))
        pthread_cond_wait(&all->changed, &all->lock);
    if (atomic_load(&all->stop))
        free(group);
    else
        all->queue[all->n_queued++] = group;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static void *run(void *context)
{
    players *all = context;
    dw_error err;
    player *p = calloc(1, sizeof *p);
    if (!p || http_client_new(&p->client, &all->stop, &err) != DW_OK) {
        free(p);
        return NULL;
    }
    p->all = all;
    while (!atomic_load(&all->stop)) {
        if (play_group(p, &err) == DW_OK) {
            queue_group(all, p->group); /* owns it */
        } else {
            free(p->group);
            note_failure(all, &err);
        }
    }
    http_client_free(p->client);
    free(p);
    return NULL;
}

/* ---- all of them ---- */

dw_status players_start(players **out, const player_options *options, dw_error *err)
{
    players *all = calloc(1, sizeof *all);
    if (!all)
        return wordle_fail(err, DW_NO_MEMORY, "players", "out of memory");
    all->options = options;
    pthread_mutex_init(&all->lock, NULL);
    program_cond_init(&all->changed);
    while (all->n_threads < options->n_threads) {
        if (pthread_create(&all->threads[all->n_threads], NULL, run, all) != 0) {
            players_stop(all);
            return wordle_fail(err, DW_NO_MEMORY, "players", "no thread can be started");
        }
        all->n_threads++;
    }
    *out = all;
    return DW_OK;
}

void players_stop(players *all)
{
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    atomic_store(&all->stop, true);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; i < all->n_threads; i++)
        pthread_join(all->threads[i], NULL);
    for (size_t i = 0; i < all->n_queued; i++)
        free(all->queue[i]);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

played_group *players_take(players *all, unsigned timeout_ms)
{
    const struct timespec end = program_deadline(timeout_ms);
    played_group *group = NULL;
    pthread_mutex_lock(&all->lock);
    while (all->n_queued == 0 &&
           pthread_cond_timedwait(&all->changed, &all->lock, &end) == 0)
        ;
    if (all->n_queued > 0) {
        group = all->queue[0];
        memmove(all->queue, all->queue + 1, --all->n_queued * sizeof group);
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return group;
}

uint64_t players_failures(players *all, dw_error *last)
{
    pthread_mutex_lock(&all->lock);
    const uint64_t n = all->n_failures;
    *last = all->last;
    pthread_mutex_unlock(&all->lock);
    return n;
}
