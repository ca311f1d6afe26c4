/* One engine of a rollout host: what is asked of it, and what is believed of it after. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/rollout.h"

#define T_RETRY_MS 50    /* before an update is tried again; doubled each time */
#define T_REST_MS  1000  /* before an engine that failed is paused again for no news */
#define MAX_REST   60000 /* the same, after many failures */

const char *dw_engine_state_name(dw_engine_state state)
{
    static const char *const names[] = {"unknown", "serving", "behind",
                                        "paused",  "broken",  "away"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "?";
}

void dw_host_engine_init(dw_host_engine *e, dw_engine *engine)
{
    *e = (dw_host_engine){.engine = engine, .told = DW_NO_VERSION};
    e->status.driver = dw_engine_driver_name(engine);
    e->status.where = dw_engine_where(engine);
    e->status.version = DW_NO_VERSION;
}

static void set_state(dw_host_engine *e, dw_engine_state state, const dw_error *err)
{
    dw_engine_status *s = &e->status;
    const dw_status code = err ? err->code : DW_OK;
    e->is_news = e->is_news || s->state != state || s->error.code != code;
    s->state = state;
    if (err)
        s->error = *err;
    else
        s->error = (dw_error){0};
}

static void set_version(dw_host_engine *e, uint64_t version)
{
    e->is_news = e->is_news || e->status.version != version;
    e->status.version = version;
}

/* Codes as drivers promise them: DW_NOT_FOUND for an engine that is gone. */
static dw_status with_code(const dw_host_engine *e, dw_status status, dw_error *err)
{
    if (status == DW_UNAVAILABLE && dw_engine_is_gone(e->engine))
        status = err->code = DW_NOT_FOUND;
    return status;
}

/* Nobody is there: whoever comes back is another process, and not paused. */
static void is_gone(dw_host_engine *e)
{
    e->paused = e->mixed = e->hung = false;
    e->met = true;
    /* of one that has not begun yet what was said of it still holds */
    if (e->answered || !e->assumed) {
        e->assumed = false;
        e->told = DW_NO_VERSION;
    }
    e->n_failed = 0;
    e->try_at = 0;
    set_version(e, DW_NO_VERSION);
}

void dw_host_engine_judge_absence(dw_host_engine *e, unsigned patience_ms)
{
    if (e->away_at == 0)
        return;
    if (patience_ms > 0)
        e->left_out = dw_clock_ms() - e->away_at >= patience_ms;
    if (e->hung && e->answered && !e->mixed && dw_engine_has_own_weights(e->engine))
        e->left_out = true;
}

static void is_away(dw_host_engine *e, unsigned patience_ms, const dw_error *err)
{
    const uint64_t now = dw_clock_ms();
    if (err->code == DW_NOT_FOUND)
        is_gone(e);
    set_version(e, DW_NO_VERSION); /* it may come back as another */
    if (e->away_at == 0)
        e->away_at = now > 0 ? now : 1;
    dw_host_engine_judge_absence(e, patience_ms);
    set_state(e, DW_ENGINE_AWAY, err);
}

/* An engine that refuses or talks nonsense is there; one that does not answer is not. */
static bool means_away(const dw_error *err)
{
    return err->code == DW_UNAVAILABLE || err->code == DW_NOT_FOUND;
}

static void is_there(dw_host_engine *e)
{
    e->answered = true;
    e->left_out = e->left_out && e->hung;
}

/* It does what it is asked to: an answer to a question alone is no proof of that. */
static void is_well(dw_host_engine *e)
{
    e->hung = false;
    e->n_hung = 0;
    is_there(e);
    e->away_at = 0;
}

static void is_in_trouble(dw_host_engine *e, const dw_error *err)
{
    set_state(e, e->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, err);
}

void dw_host_engine_probe(dw_host_engine *e, unsigned patience_ms)
{
    dw_error err = {0};
    dw_engine_info info;
    if (with_code(e, dw_engine_probe(e->engine, &info, &err), &err) != DW_OK) {
        if (means_away(&err))
            is_away(e, patience_ms, &err);
        else
            is_in_trouble(e, &err);
        return;
    }
    is_there(e);
    if (strcmp(e->status.software, info.software) != 0) {
        strcpy(e->status.software, info.software);
        e->is_news = true;
    }
    if (!dw_engine_can_probe(e->engine) || (info.version == DW_NO_VERSION && e->assumed))
        info.version = e->told;
    set_version(e, info.version);
    /* the caller knows what version it should be, and says the rest */
    if (e->status.state == DW_ENGINE_AWAY && !e->hung)
        set_state(e, e->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_UNKNOWN, NULL);
}

bool dw_host_engine_serves(const dw_host_engine *e, uint64_t version)
{
    return !e->mixed && !e->reload && e->status.version == version;
}

void dw_host_engine_begin(dw_host_engine *e)
{
    e->t_paused = e->t_updated = e->t_resume = e->t_resumed = 0;
}

void dw_host_engine_mistrust(dw_host_engine *e, const dw_error *err)
{
    e->mixed = true;
    set_state(e, DW_ENGINE_BROKEN, err);
}

dw_status dw_host_engine_fail(const dw_host_engine *e, dw_error *err)
{
    if (err) {
        *err = e->status.error;
        err->code = DW_UNAVAILABLE;
    }
    return DW_UNAVAILABLE;
}

void dw_host_engine_confirm(dw_host_engine *e, const dw_engine_update *update)
{
    e->paused = e->paused || !e->met;
    e->told = update->version;
    dw_host_engine_resume(e, update);
    if (e->paused)
        return; /* it says why */
    e->met = true;
    is_well(e);
    set_state(e, DW_ENGINE_SERVING, NULL);
}

bool dw_host_engine_counts(const dw_host_engine *e)
{
    return !e->left_out && !e->skipped;
}

bool dw_host_engine_pause(dw_host_engine *e, const dw_engine_update *update,
                          unsigned patience_ms)
{
    dw_error err = {0};
    dw_host_engine_begin(e);
    const uint64_t start = dw_clock_ms();
    dw_status status = with_code(e, dw_engine_pause(e->engine, update, &err), &err);
    if (status == DW_OK) {
        e->t_paused = dw_clock_us();
        e->paused = true;
        is_well(e);
        set_state(e, e->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_PAUSED, NULL);
        return true;
    }
    /* the answer may have been lost, and not the question */
    e->paused = true;
    const bool refuses = !means_away(&err);
    if (status == DW_UNAVAILABLE && dw_clock_ms() - start >= DW_PAUSE_GRACE_MS) {
        e->hung = true;
        dw_host_engine_back_off(e);
    }
    is_away(e, patience_ms, &err); /* for as long as it cannot be paused */
    if (refuses)
        is_in_trouble(e, &err);
    return false;
}

void dw_host_engine_resume(dw_host_engine *e, const dw_engine_update *update)
{
    dw_error err = {0};
    if (!e->paused || e->mixed || e->held || e->hung)
        return;
    e->t_resume = dw_clock_us();
    dw_status status = with_code(e, dw_engine_resume(e->engine, update, &err), &err);
    e->t_resumed = dw_clock_us();
    if (status == DW_OK) {
        e->paused = false;
        if (e->status.state == DW_ENGINE_PAUSED)
            set_state(e, DW_ENGINE_BEHIND, NULL);
    } else if (means_away(&err)) {
        is_away(e, 0, &err);
    } else {
        is_in_trouble(e, &err);
    }
}

/* Doubled with each failure in a row. */
static uint64_t rest_ms(unsigned n_failed)
{
    const uint64_t ms = (uint64_t)T_REST_MS << (n_failed < 7 ? n_failed : 7);
    return ms < MAX_REST ? ms : MAX_REST;
}

void dw_host_engine_back_off(dw_host_engine *e)
{
    e->try_at = dw_clock_ms() + rest_ms(++e->n_hung);
}

void dw_host_engine_paused_late(dw_host_engine *e)
{
    is_well(e);
    e->paused = true;
    e->try_at = 0;
    set_state(e, e->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, NULL);
}

/* One try: true where it holds UPDATE's version now. */
static bool update_once(dw_host_engine *e, const dw_engine_update *update, dw_error *err)
{
    bool whole = false;
    dw_status status = with_code(e, dw_engine_apply(e->engine, update, &whole, err), err);
    if (status == DW_OK) {
        e->mixed = e->assumed = e->reload = false;
        e->met = true;
        e->told = update->version;
        set_version(e, update->version);
        return true;
    }
    if (status == DW_NOT_FOUND) {
        is_gone(e);
        return false;
    }
    e->mixed = e->mixed || !whole;
    set_version(e, DW_NO_VERSION);
    is_in_trouble(e, err);
    return false;
}

void dw_host_engine_take_over(dw_host_engine *e, const dw_engine_update *update,
                              unsigned n_tries)
{
    dw_error err = {0};
    if (!e->paused)
        return;
    /* the weights whole, where the patch does not start from what it has */
    dw_engine_update whole = *update;
    whole.patch = NULL;
    whole.from = DW_NO_VERSION;
    bool fits = update->patch && update->from != DW_NO_VERSION &&
                dw_host_engine_serves(e, update->from);
    bool done = false;
    uint64_t wait_ms = T_RETRY_MS;
    for (unsigned i = 0; !done && i < n_tries; i++) {
        if (i > 0) {
            dw_sleep_ms(wait_ms);
            wait_ms *= 2;
        }
        done = update_once(e, fits ? update : &whole, &err);
        fits = false;
        if (!done && means_away(&err))
            break;
    }
    e->t_updated = dw_clock_us();
    e->n_failed = done ? 0 : e->n_failed + 1;
    e->try_at = done ? 0 : dw_clock_ms() + rest_ms(e->n_failed);
    if (!done && means_away(&err)) {
        if (err.code != DW_NOT_FOUND)
            dw_host_engine_resume(e, update); /* where it is whole */
        is_away(e, 0, &err);
        return;
    }
    dw_host_engine_resume(e, update);
    if (done && !e->paused)
        set_state(e, DW_ENGINE_SERVING, NULL);
    else if (!done)
        is_in_trouble(e, &err);
}
