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

void dw_member_init(dw_member *m, dw_engine *engine)
{
    *m = (dw_member){.engine = engine, .told = DW_NO_VERSION};
    m->status.driver = dw_engine_driver_name(engine);
    m->status.where = dw_engine_where(engine);
    m->status.version = DW_NO_VERSION;
}

static void set_state(dw_member *m, dw_engine_state state, const dw_error *err)
{
    dw_engine_status *s = &m->status;
    const dw_status code = err ? err->code : DW_OK;
    m->is_news = m->is_news || s->state != state || s->error.code != code;
    s->state = state;
    if (err)
        s->error = *err;
    else
        s->error = (dw_error){0};
}

static void set_version(dw_member *m, uint64_t version)
{
    m->is_news = m->is_news || m->status.version != version;
    m->status.version = version;
}

/* Codes as drivers promise them: DW_NOT_FOUND for an engine that is gone. */
static dw_status with_code(const dw_member *m, dw_status status, dw_error *err)
{
    if (status == DW_UNAVAILABLE && dw_engine_is_gone(m->engine))
        status = err->code = DW_NOT_FOUND;
    return status;
}

/* Nobody is there: whoever comes back is another process, and not paused. */
static void is_gone(dw_member *m)
{
    m->paused = m->mixed = m->hung = false;
    m->met = true;
    /* of one that has not begun yet what was said of it still holds */
    if (m->answered || !m->assumed) {
        m->assumed = false;
        m->told = DW_NO_VERSION;
    }
    m->n_failed = 0;
    m->try_at = 0;
    set_version(m, DW_NO_VERSION);
}

void dw_member_judge_absence(dw_member *m, unsigned patience_ms)
{
    if (m->away_at == 0)
        return;
    if (patience_ms > 0)
        m->left_out = dw_clock_ms() - m->away_at >= patience_ms;
    if (m->hung && m->answered && !m->mixed && dw_engine_has_own_weights(m->engine))
        m->left_out = true;
}

static void is_away(dw_member *m, unsigned patience_ms, const dw_error *err)
{
    const uint64_t now = dw_clock_ms();
    if (err->code == DW_NOT_FOUND)
        is_gone(m);
    set_version(m, DW_NO_VERSION); /* it may come back as another */
    if (m->away_at == 0)
        m->away_at = now > 0 ? now : 1;
    dw_member_judge_absence(m, patience_ms);
    set_state(m, DW_ENGINE_AWAY, err);
}

/* An engine that refuses or talks nonsense is there; one that does not answer is not. */
static bool means_away(const dw_error *err)
{
    return err->code == DW_UNAVAILABLE || err->code == DW_NOT_FOUND;
}

static void is_there(dw_member *m)
{
    m->answered = true;
    m->left_out = m->left_out && m->hung;
}

/* It does what it is asked to: an answer to a question alone is no proof of that. */
static void is_well(dw_member *m)
{
    m->hung = false;
    m->n_hung = 0;
    is_there(m);
    m->away_at = 0;
}

static void is_in_trouble(dw_member *m, const dw_error *err)
{
    set_state(m, m->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, err);
}

void dw_member_probe(dw_member *m, unsigned patience_ms)
{
    dw_error err = {0};
    dw_engine_info info;
    if (with_code(m, dw_engine_probe(m->engine, &info, &err), &err) != DW_OK) {
        if (means_away(&err))
            is_away(m, patience_ms, &err);
        else
            is_in_trouble(m, &err);
        return;
    }
    is_there(m);
    if (strcmp(m->status.software, info.software) != 0) {
        strcpy(m->status.software, info.software);
        m->is_news = true;
    }
    if (!dw_engine_can_probe(m->engine) || (info.version == DW_NO_VERSION && m->assumed))
        info.version = m->told;
    set_version(m, info.version);
    /* the caller knows what version it should be, and says the rest */
    if (m->status.state == DW_ENGINE_AWAY && !m->hung)
        set_state(m, m->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_UNKNOWN, NULL);
}

bool dw_member_serves(const dw_member *m, uint64_t version)
{
    return !m->mixed && !m->reload && m->status.version == version;
}

void dw_member_begin(dw_member *m)
{
    m->t_paused = m->t_updated = m->t_resume = m->t_resumed = 0;
}

void dw_member_mistrust(dw_member *m, const dw_error *err)
{
    m->mixed = true;
    set_state(m, DW_ENGINE_BROKEN, err);
}

dw_status dw_member_fail(const dw_member *m, dw_error *err)
{
    if (err) {
        *err = m->status.error;
        err->code = DW_UNAVAILABLE;
    }
    return DW_UNAVAILABLE;
}

void dw_member_confirm(dw_member *m, const dw_engine_update *update)
{
    m->paused = m->paused || !m->met;
    m->told = update->version;
    dw_member_resume(m, update);
    if (m->paused)
        return; /* it says why */
    m->met = true;
    is_well(m);
    set_state(m, DW_ENGINE_SERVING, NULL);
}

bool dw_member_counts(const dw_member *m)
{
    return !m->left_out && !m->skipped;
}

bool dw_member_pause(dw_member *m, const dw_engine_update *update, unsigned patience_ms)
{
    dw_error err = {0};
    dw_member_begin(m);
    const uint64_t start = dw_clock_ms();
    dw_status status = with_code(m, dw_engine_pause(m->engine, update, &err), &err);
    if (status == DW_OK) {
        m->t_paused = dw_clock_us();
        m->paused = true;
        is_well(m);
        set_state(m, m->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_PAUSED, NULL);
        return true;
    }
    /* the answer may have been lost, and not the question */
    m->paused = true;
    const bool refuses = !means_away(&err);
    if (status == DW_UNAVAILABLE && dw_clock_ms() - start >= DW_CREW_GRACE_MS) {
        m->hung = true;
        dw_member_rests(m);
    }
    is_away(m, patience_ms, &err); /* for as long as it cannot be paused */
    if (refuses)
        is_in_trouble(m, &err);
    return false;
}

void dw_member_resume(dw_member *m, const dw_engine_update *update)
{
    dw_error err = {0};
    if (!m->paused || m->mixed || m->held || m->hung)
        return;
    m->t_resume = dw_clock_us();
    dw_status status = with_code(m, dw_engine_resume(m->engine, update, &err), &err);
    m->t_resumed = dw_clock_us();
    if (status == DW_OK) {
        m->paused = false;
        if (m->status.state == DW_ENGINE_PAUSED)
            set_state(m, DW_ENGINE_BEHIND, NULL);
    } else if (means_away(&err)) {
        is_away(m, 0, &err);
    } else {
        is_in_trouble(m, &err);
    }
}

/* Doubled with each failure in a row. */
static uint64_t rest_ms(unsigned n_failed)
{
    const uint64_t ms = (uint64_t)T_REST_MS << (n_failed < 7 ? n_failed : 7);
    return ms < MAX_REST ? ms : MAX_REST;
}

void dw_member_rests(dw_member *m)
{
    m->try_at = dw_clock_ms() + rest_ms(++m->n_hung);
}

void dw_member_mends(dw_member *m)
{
    is_well(m);
    m->paused = true;
    m->try_at = 0;
    set_state(m, m->mixed ? DW_ENGINE_BROKEN : DW_ENGINE_BEHIND, NULL);
}

/* One try: true where it holds UPDATE's version now. */
static bool update_once(dw_member *m, const dw_engine_update *update, dw_error *err)
{
    bool whole = false;
    dw_status status = with_code(m, dw_engine_apply(m->engine, update, &whole, err), err);
    if (status == DW_OK) {
        m->mixed = m->assumed = m->reload = false;
        m->met = true;
        m->told = update->version;
        set_version(m, update->version);
        return true;
    }
    if (status == DW_NOT_FOUND) {
        is_gone(m);
        return false;
    }
    m->mixed = m->mixed || !whole;
    set_version(m, DW_NO_VERSION);
    is_in_trouble(m, err);
    return false;
}

void dw_member_take_over(dw_member *m, const dw_engine_update *update, unsigned n_tries)
{
    dw_error err = {0};
    if (!m->paused)
        return;
    /* the weights whole, where the patch does not start from what it has */
    dw_engine_update whole = *update;
    whole.patch = NULL;
    whole.from = DW_NO_VERSION;
    bool fits = update->patch && update->from != DW_NO_VERSION &&
                dw_member_serves(m, update->from);
    bool done = false;
    uint64_t wait_ms = T_RETRY_MS;
    for (unsigned i = 0; !done && i < n_tries; i++) {
        if (i > 0) {
            dw_sleep_ms(wait_ms);
            wait_ms *= 2;
        }
        done = update_once(m, fits ? update : &whole, &err);
        fits = false;
        if (!done && means_away(&err))
            break;
    }
    m->t_updated = dw_clock_us();
    m->n_failed = done ? 0 : m->n_failed + 1;
    m->try_at = done ? 0 : dw_clock_ms() + rest_ms(m->n_failed);
    if (!done && means_away(&err)) {
        if (err.code != DW_NOT_FOUND)
            dw_member_resume(m, update); /* where it is whole */
        is_away(m, 0, &err);
        return;
    }
    dw_member_resume(m, update);
    if (done && !m->paused)
        set_state(m, DW_ENGINE_SERVING, NULL);
    else if (!done)
        is_in_trouble(m, &err);
}
