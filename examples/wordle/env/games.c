#include "games.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "program.h"

dw_status games_init(games *g, const words *list, size_t n_answers, size_t max,
                     dw_error *err)
{
    const bool all = n_answers == 0 || n_answers > list->n;
    *g = (games){.words = list,
                 .n_answers = all ? list->n : n_answers,
                 .max = max,
                 .n_buckets = max};
    TAILQ_INIT(&g->live);
    TAILQ_INIT(&g->done);
    g->buckets = calloc(g->n_buckets, sizeof *g->buckets);
    return g->buckets ? DW_OK : wordle_fail(err, DW_NO_MEMORY, "games", "out of memory");
}

void games_release(games *g)
{
    while (!TAILQ_EMPTY(&g->live))
        games_drop(g, TAILQ_FIRST(&g->live));
    while (!TAILQ_EMPTY(&g->done))
        games_drop(g, TAILQ_FIRST(&g->done));
    free(g->buckets);
}

const char *games_answer(const games *g, size_t i)
{
    return g->words->list[i * g->words->n / g->n_answers];
}

static games_list *list_of(games *g, const games_entry *e)
{
    return e->is_done ? &g->done : &g->live;
}

static games_entry **bucket_of(games *g, uint64_t id)
{
    return &g->buckets[id % g->n_buckets];
}

static games_entry *look_up(games *g, uint64_t id)
{
    games_entry *e = *bucket_of(g, id);
    while (e && e->id != id)
        e = e->next;
    return e;
}

static void touch(games *g, games_entry *e, uint64_t now_ms)
{
    TAILQ_REMOVE(list_of(g, e), e, order);
    e->is_done = game_is_done(&e->game);
    e->t_used_ms = now_ms;
    TAILQ_INSERT_TAIL(list_of(g, e), e, order);
}

games_entry *games_open(games *g, uint64_t seed, uint64_t now_ms)
{
    games_expire(g, now_ms);
    if (g->n == g->max) {
        if (TAILQ_EMPTY(&g->done))
            return NULL;
        games_drop(g, TAILQ_FIRST(&g->done));
    }
    games_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->seed = seed;
    e->t_used_ms = now_ms;
    do
        e->id = program_random();
    while (look_up(g, e->id));
    game_start(&e->game, games_answer(g, program_next_random(&seed) % g->n_answers));
    games_entry **bucket = bucket_of(g, e->id);
    e->next = *bucket;
    *bucket = e;
    TAILQ_INSERT_TAIL(&g->live, e, order);
    g->n++;
    g->stats.n_started++;
    return e;
}

games_entry *games_find(games *g, const char *id, uint64_t now_ms)
{
    games_expire(g, now_ms);
    if (strlen(id) != GAMES_ID_BYTES - 1 ||
        strspn(id, "0123456789abcdef") != GAMES_ID_BYTES - 1)
        return NULL;
    games_entry *e = look_up(g, strtoull(id, NULL, 16));
    if (e)
        touch(g, e, now_ms);
    return e;
}

game_move games_guess(games *g, games_entry *e, const char *text, size_t n)
{
    const game_move move = game_guess(&e->game, g->words, text, n);
    g->stats.n_guesses++;
    g->stats.n_invalid += !move.valid;
    if (game_is_done(&e->game)) {
        g->stats.n_finished++;
        g->stats.n_won += e->game.won;
        g->stats.n_turns += e->game.won ? e->game.turn : 0;
        g->stats.total_reward += e->game.total;
        touch(g, e, e->t_used_ms);
    }
    return move;
}

void games_drop(games *g, games_entry *e)
{
    games_entry **at = bucket_of(g, e->id);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    TAILQ_REMOVE(list_of(g, e), e, order);
    free(e);
    g->n--;
}

static void expire_list(games *g, games_list *list, uint64_t now_ms)
{
    games_entry *e;
    while ((e = TAILQ_FIRST(list)) && now_ms - e->t_used_ms > GAMES_IDLE_MS)
        games_drop(g, e);
}

void games_expire(games *g, uint64_t now_ms)
{
    expire_list(g, &g->live, now_ms);
    expire_list(g, &g->done, now_ms);
}
