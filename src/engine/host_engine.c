/* One engine of a rollout host: the requests to it, and its state. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_int.h"
#include "engine/rollout_int.h"

#define T_RETRY_MS    50    /* before an update is tried again; doubled each time */
#define T_REST_MS     1000  /* before an engine that failed is tried again without news */
#define MAX_REST      60000 /* the same, after many failures */
#define MAX_HUNG_REST 5000  /* before an engine that hangs is asked again */

const char *dw_engine_state_name(dw_engine_state state)
{
    static const char *const names[] = {"unknown", "serving", "behind",
                                        "paused",  "broken",  "away"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "?";
}

/* ---- its state ---- */

typedef enum event {
    PAUSED,     /* it acknowledged a pause */
    UNANSWERED, /* it was asked to pause: it may have done so, or not */
    TIMED_OUT,  /* the same, and it took DW_PAUSE_GRACE_MS or longer */
    RESUMED,    /* it acknowledged a resume */
    UPDATED,    /* it took an update over */
    DISTRUSTED, /* its weights may be a mix */
    GONE,       /* its process has ended: what comes next is another one, not paused */
    N_EVENTS,
} event;

#define NEW     DW_HOST_NEW
#define RUN     DW_HOST_RUNNING
#define PAUSE   DW_HOST_PAUSED
#define MIX     DW_HOST_MIXED
#define HUNG    DW_HOST_HUNG
#define HUNGMIX DW_HOST_HUNG_MIXED

/* clang-format off */
static const dw_host_state next_state[DW_N_HOST_STATES][N_EVENTS] = {
    /*            PAUSED  UNANSWERED  TIMED_OUT  RESUMED  UPDATED  DISTRUSTED  GONE */
    [NEW]     = { PAUSE,  PAUSE,      HUNG,      RUN,     NEW,     MIX,        RUN },
    [RUN]     = { PAUSE,  PAUSE,      HUNG,      RUN,     RUN,     MIX,        RUN },
    [PAUSE]   = { PAUSE,  PAUSE,      HUNG,      RUN,     PAUSE,   MIX,        RUN },
    [MIX]     = { MIX,    MIX,        HUNGMIX,   MIX,     PAUSE,   MIX,        RUN },
    [HUNG]    = { PAUSE,  HUNG,       HUNG,      HUNG,    HUNG,    HUNGMIX,    RUN },
    [HUNGMIX] = { MIX,    HUNGMIX,    HUNGMIX,   HUNGMIX, HUNGMIX, HUNGMIX,    RUN },
};
/* clang-format on */

static void take_event(dw_host_engine *e, event ev)
{
    e->state = next_state[e->state][ev];
}

bool dw_host_engine_hangs(const dw_host_engine *e)
{
    return e->state == DW_HOST_HUNG || e->state == DW_HOST_HUNG_MIXED;
}

static bool is_mixed(const dw_host_engine *e)
{
    return e->state == DW_HOST_MIXED || e->state == DW_HOST_HUNG_MIXED;
}

/* ---- its status ---- */

void dw_host_engine_init(dw_host_engine *e, const dw_rollout *rollout, dw_engine *engine)
{
    *e =
        (dw_host_engine){.rollout = rollout, .engine = engine, .believed = DW_NO_VERSION};
    e->status.driver = engine->driver->name;
    e->status.where = engine->where;
    e->status.version = DW_NO_VERSION;
}

static void show(dw_host_engine *e, dw_engine_state state, const dw_error *err)
{
    dw_engine_status *s = &e->status;
    const dw_status code = err ? err->code : DW_OK;
    if (s->state != state || s->error.code != code)
        e->status_changed = true;
    s->state = state;
    s->error = err ? *err : (dw_error){0};
}

/* Notes that it answers but did not do what was asked. */
static void show_trouble(dw_host_engine *e, const dw_error *err)
{
    show(e, is_mixed(e) ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, err);
}

static void set_version(dw_host_engine *e, uint64_t version)
{
    if (e->status.version != version)
        e->status_changed = true;
    e->status.version = version;
}

dw_status dw_host_engine_fail(const dw_host_engine *e, dw_error *err)
{
    if (err) {
        *err = e->status.error;
        err->code = DW_UNAVAILABLE;
    }
    return DW_UNAVAILABLE;
}

/* ---- interpreting answers ---- */

/* Gives an engine that is gone the code that drivers promise for it. */
static dw_status with_code(const dw_host_engine *e, dw_status status, dw_error *err)
{
    if (status == DW_UNAVAILABLE && dw_engine_is_gone(e->engine))
        status = err->code = DW_NOT_FOUND;
    return status;
}

/* An engine that refuses or sends a wrong answer is there; one that does not answer is
 * away. */
static bool means_away(const dw_error *err)
{
    return err->code == DW_UNAVAILABLE || err->code == DW_NOT_FOUND;
}

static bool took_long(uint64_t sent)
{
    return dw_clock_ms() - sent >= DW_PAUSE_GRACE_MS;
}

static void is_gone(dw_host_engine *e)
{
    take_event(e, GONE);
    e->believed = DW_NO_VERSION;
    e->n_failed = 0;
    e->try_at = 0;
    set_version(e, DW_NO_VERSION);
}

void dw_host_engine_judge_absence(dw_host_engine *e)
{
    unsigned patience_ms = e->rollout->options.patience_ms;
    /* the stores do not harm it. One that has ended may be reading the directory again,
     * and one that reads it in place does */
    if (patience_ms == 0 && e->is_silent && e->engine->own_weights)
        patience_ms = DW_PATIENCE_MS;
    const uint64_t away_at = e->engine->away_at;
    if (away_at == 0 || patience_ms == 0) {
        if (e->part == DW_PART_LEFT_OUT) /* it was silent, and has ended since */
            e->part = DW_PART_FULL;
        return;
    }
    const bool is_over = dw_clock_ms() - away_at >= patience_ms;
    e->part = is_over ? DW_PART_LEFT_OUT : DW_PART_FULL;
    if (is_over && e->is_silent && !dw_host_engine_hangs(e)) {
        take_event(e, TIMED_OUT); /* from now on nobody waits for its answers */
        e->try_at = 0;
    }
}

/* It does not answer a request that was sent at SENT. */
static void is_away(dw_host_engine *e, const dw_error *err, uint64_t sent)
{
    e->is_silent = err->code == DW_UNAVAILABLE && took_long(sent);
    if (err->code == DW_NOT_FOUND)
        is_gone(e);
    set_version(e, DW_NO_VERSION); /* it may come back as another process */
    if (e->engine->away_at == 0)
        e->engine->away_at = sent > 0 ? sent : 1;
    dw_host_engine_judge_absence(e);
    show(e, DW_ENGINE_AWAY, err);
}

static void is_there(dw_host_engine *e)
{
    e->answered = true;
    if (e->part == DW_PART_LEFT_OUT && !dw_host_engine_hangs(e))
        e->part = DW_PART_FULL;
}

/* Notes that it did what was asked. An answer to a probe would not prove that. */
static void is_well(dw_host_engine *e)
{
    e->n_hung = 0;
    e->engine->away_at = 0;
    e->is_silent = false;
    is_there(e);
}

/* The rest after N failures in a row. */
static uint64_t rest_ms(unsigned n)
{
    const uint64_t ms = (uint64_t)T_REST_MS << (n < 7 ? n : 7);
    return ms < MAX_REST ? ms : MAX_REST;
}

/* ---- probe ---- */

void dw_host_engine_probe(dw_host_engine *e)
{
    dw_error err = {0};
    dw_engine_info info;
    const uint64_t sent = dw_clock_ms();
    if (dw_host_engine_hangs(e))
        return; /* it would take long */
    if (with_code(e, dw_engine_probe(e->engine, &info, &err), &err) != DW_OK) {
        if (means_away(&err))
            is_away(e, &err, sent);
        else
            show_trouble(e, &err);
        return;
    }
    is_there(e);
    if (strcmp(e->status.software, info.software) != 0) {
        strcpy(e->status.software, info.software);
        e->status_changed = true;
    }
    set_version(e, info.version != DW_NO_VERSION ? info.version : e->believed);
    /* the caller knows which version it should be, and goes on from there */
    if (e->status.state == DW_ENGINE_AWAY && !dw_host_engine_hangs(e))
        show(e, is_mixed(e) ? DW_ENGINE_BROKEN : DW_ENGINE_UNKNOWN, NULL);
}

bool dw_host_engine_serves(const dw_host_engine *e, uint64_t version)
{
    return !is_mixed(e) && !e->must_reload && e->status.version == version;
}

void dw_host_engine_release(dw_host_engine *e)
{
    dw_host_engine_probe(e);
    if (e->status.state == DW_ENGINE_AWAY)
        return;
    if (e->state == DW_HOST_NEW)
        take_event(e, UNANSWERED);
    dw_host_engine_resume(e, NULL);
    if (e->state == DW_HOST_RUNNING)
        is_well(e);
}

void dw_host_engine_confirm(dw_host_engine *e, const dw_engine_update *update)
{
    if (e->state == DW_HOST_NEW)
        take_event(e, UNANSWERED); /* another process may have paused it */
    if (!e->engine->driver->probe)
        e->believed = update->version;
    dw_host_engine_resume(e, update);
    if (e->state != DW_HOST_RUNNING || !dw_host_engine_serves(e, update->version))
        return; /* its status has the reason */
    is_well(e);
    show(e, DW_ENGINE_SERVING, NULL);
}

/* ---- pause ---- */

void dw_host_engine_begin(dw_host_engine *e)
{
    e->t_paused = e->t_updated = e->t_resume = e->t_resumed = 0;
}

void dw_host_engine_distrust(dw_host_engine *e, const dw_error *err)
{
    take_event(e, DISTRUSTED);
    if (err)
        show(e, DW_ENGINE_BROKEN, err);
}

/* It still hangs. The next try comes later each time. */
static void back_off(dw_host_engine *e)
{
    const uint64_t rest = rest_ms(++e->n_hung);
    e->try_at = dw_clock_ms() + (rest < MAX_HUNG_REST ? rest : MAX_HUNG_REST);
}

bool dw_host_engine_pause(dw_host_engine *e, const dw_engine_update *update)
{
    dw_error err = {0};
    dw_host_engine_begin(e);
    const uint64_t sent = dw_clock_ms();
    dw_status status = with_code(e, dw_engine_pause(e->engine, update, &err), &err);
    if (status == DW_OK) {
        e->t_paused = dw_clock_us();
        take_event(e, PAUSED);
        is_well(e);
        show(e, is_mixed(e) ? DW_ENGINE_BROKEN : DW_ENGINE_PAUSED, NULL);
        return true;
    }
    if (status == DW_UNAVAILABLE && took_long(sent)) {
        take_event(e, TIMED_OUT);
        back_off(e);
    } else {
        take_event(e, UNANSWERED);
    }
    is_away(e, &err, sent); /* for as long as it cannot be paused */
    if (!means_away(&err))
        show_trouble(e, &err);
    return false;
}

void dw_host_engine_retried(dw_host_engine *e, dw_status status,
                            const dw_error *retry_err)
{
    dw_error err = *retry_err;
    if (status == DW_OK) {
        take_event(e, PAUSED);
        is_well(e);
        e->try_at = 0;
        show(e, is_mixed(e) ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, NULL);
    } else if (with_code(e, status, &err) == DW_NOT_FOUND) {
        is_away(e, &err, dw_clock_ms());
    } else {
        back_off(e);
    }
}

void dw_host_engine_give_up(dw_host_engine *e)
{
    if (dw_host_engine_hangs(e))
        take_event(e, PAUSED);
}

/* ---- apply ---- */

/* Tries once. True if it now serves UPDATE's version. */
static bool update_once(dw_host_engine *e, const dw_engine_update *update, dw_error *err)
{
    bool whole = false;
    dw_status status = with_code(e, dw_engine_apply(e->engine, update, &whole, err), err);
    if (status == DW_OK) {
        take_event(e, UPDATED);
        e->must_reload = false;
        e->by_patch = update->patch != NULL;
        e->believed = e->engine->driver->probe ? DW_NO_VERSION : update->version;
        set_version(e, update->version);
        show(e, DW_ENGINE_PAUSED, NULL);
        return true;
    }
    if (status == DW_NOT_FOUND) {
        is_gone(e);
        return false;
    }
    if (!whole)
        take_event(e, DISTRUSTED);
    set_version(e, DW_NO_VERSION);
    show_trouble(e, err);
    return false;
}

void dw_host_engine_apply(dw_host_engine *e, const dw_engine_update *update)
{
    dw_error err = {0};
    uint64_t sent = 0;
    if (e->state != DW_HOST_PAUSED && e->state != DW_HOST_MIXED)
        return;
    /* load all weights if the patch does not start from its version */
    dw_engine_update whole = *update;
    whole.patch = NULL;
    whole.from = DW_NO_VERSION;
    bool fits = update->patch && update->from != DW_NO_VERSION &&
                dw_host_engine_serves(e, update->from);
    bool done = false;
    uint64_t wait_ms = T_RETRY_MS;
    for (unsigned i = 0; !done && i < e->rollout->options.n_tries; i++) {
        if (i > 0) {
            dw_sleep_ms(wait_ms);
            wait_ms *= 2;
        }
        sent = dw_clock_ms();
        done = update_once(e, fits ? update : &whole, &err);
        fits = false;
        if (!done && means_away(&err))
            break;
    }
    e->t_updated = dw_clock_us();
    e->n_failed = done ? 0 : e->n_failed + 1;
    e->try_at = done ? 0 : dw_clock_ms() + rest_ms(e->n_failed);
    if (!done && means_away(&err))
        is_away(e, &err, sent);
}

/* ---- resume ---- */

void dw_host_engine_resume(dw_host_engine *e, const dw_engine_update *update)
{
    dw_error err = {0};
    if (e->state != DW_HOST_PAUSED || (e->rollout->recovering && !e->engine->own_weights))
        return;
    const uint64_t sent = dw_clock_ms();
    e->t_resume = dw_clock_us();
    dw_status status = with_code(e, dw_engine_resume(e->engine, update, &err), &err);
    e->t_resumed = dw_clock_us();
    if (status == DW_OK) {
        take_event(e, RESUMED);
        const bool is_new = update && update->version != DW_NO_VERSION &&
                            dw_host_engine_serves(e, update->version);
        if (e->status.state == DW_ENGINE_PAUSED || e->status.state == DW_ENGINE_UNKNOWN)
            show(e, is_new ? DW_ENGINE_SERVING : DW_ENGINE_BEHIND, NULL);
    } else if (means_away(&err)) {
        is_away(e, &err, sent);
    } else {
        show_trouble(e, &err);
    }
}
