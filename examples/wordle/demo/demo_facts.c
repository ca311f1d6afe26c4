#include "demo_facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t count_of(const json_t *line, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(line, key));
    return n > 0 ? (uint64_t)n : 0;
}

static double real_of(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "";
}

/* Room for one more of an array that grows by doubling. */
static bool grow(void **array, size_t n, size_t size)
{
    if ((n & (n - 1)) != 0 || n >= DEMO_MAX_STEPS)
        return n < DEMO_MAX_STEPS;
    void *grown = realloc(*array, (n ? 2 * n : 1) * size);
    if (grown)
        *array = grown;
    return grown != NULL;
}

/* ---- the trainer ---- */

static void take_step(demo_facts *f, const json_t *line)
{
    const uint64_t step = count_of(line, "step");
    /* a restarted trainer repeats the steps since it saved its state */
    while (f->n_steps > 0 && f->steps[f->n_steps - 1].step >= step)
        f->n_steps--;
    void *steps = f->steps;
    if (!grow(&steps, f->n_steps, sizeof *f->steps))
        return;
    f->steps = steps;
    f->steps[f->n_steps++] = (demo_step){
        .step = step,
        .t = real_of(line, "t"),
        .reward = real_of(line, "reward"),
        .win_rate = real_of(line, "win_rate"),
        .invalid_rate = real_of(line, "invalid_rate"),
        .consistent_rate = real_of(line, "consistent_rate"),
        .lag = real_of(line, "lag"),
        .max_lag = real_of(line, "max_lag"),
        .ratio_off = real_of(line, "ratio_off"),
        .dropped = count_of(line, "dropped"),
        .version = count_of(line, "version"),
        .bytes = count_of(line, "bytes"),
        .changed = count_of(line, "changed"),
    };
}

static void take_metrics(void *context, const json_t *line)
{
    demo_facts *f = context;
    const char *event = text_of(line, "event");
    f->t = real_of(line, "t");
    if (json_object_get(line, "version"))
        f->newest = count_of(line, "version");
    if (strcmp(event, "start") == 0) {
        snprintf(f->stream, sizeof f->stream, "%s", text_of(line, "stream"));
        f->params = count_of(line, "params");
        f->full_bytes = 2 * f->params;
    } else if (strcmp(event, "warmup") == 0) {
        f->warmup_step = count_of(line, "step");
        f->warmup_loss = real_of(line, "loss");
    } else if (strcmp(event, "warm") == 0) {
        f->warm = true;
    } else if (strcmp(event, "step") == 0) {
        f->warm = true;
        take_step(f, line);
    } else if (strcmp(event, "evaluation") == 0) {
        f->n_evaluated = count_of(line, "games");
        f->final_reward = real_of(line, "reward");
        f->final_win_rate = real_of(line, "win_rate");
        f->final_consistent_rate = real_of(line, "consistent_rate");
    } else if (strcmp(event, "trouble") == 0) {
        snprintf(f->trouble, sizeof f->trouble, "%s: %s", text_of(line, "where"),
                 text_of(line, "text"));
    } else if (strcmp(event, "end") == 0) {
        f->ended = true;
        f->final_version = count_of(line, "version");
        snprintf(f->final_state, sizeof f->final_state, "%s", text_of(line, "state"));
    }
}

/* ---- a follower ---- */

static void take_version(demo_server *s, const json_t *line)
{
    void *pauses = s->pauses_ms;
    s->version = count_of(line, "version");
    s->n_updates++;
    s->n_bytes += count_of(line, "bytes");
    s->trouble[0] = '\0';
    if (json_is_null(json_object_get(line, "from")))
        return; /* the first one: the server had no weights yet */
    if (grow(&pauses, s->n_pauses, sizeof *s->pauses_ms)) {
        s->pauses_ms = pauses;
        s->pauses_ms[s->n_pauses++] = real_of(line, "stopped_ms");
    }
}

static void take_event(void *context, const json_t *line)
{
    demo_server *s = context;
    const char *event = text_of(line, "event");
    if (strcmp(event, "listening") == 0)
        snprintf(s->page, sizeof s->page, "%s", text_of(line, "url"));
    else if (strcmp(event, "engine") == 0)
        snprintf(s->state, sizeof s->state, "%s", text_of(line, "state"));
    else if (strcmp(event, "version") == 0)
        take_version(s, line);
    else if (strcmp(event, "error") == 0)
        snprintf(s->trouble, sizeof s->trouble, "%s",
                 json_is_object(json_object_get(line, "error"))
                     ? text_of(json_object_get(line, "error"), "text")
                     : text_of(line, "text"));
    else if (strcmp(event, "recovered") == 0)
        s->trouble[0] = '\0';
}

/* ---- all ---- */

uint64_t demo_facts_step(const demo_facts *f)
{
    return f->n_steps ? f->steps[f->n_steps - 1].step : 0;
}

void demo_facts_update(demo_facts *f)
{
    tail_read(&f->metrics, take_metrics, f);
    for (size_t i = 0; i < f->n_servers; i++)
        tail_read(&f->servers[i].events, take_event, &f->servers[i]);
}

void demo_facts_release(demo_facts *f)
{
    free(f->steps);
    for (size_t i = 0; i < f->n_servers; i++)
        free(f->servers[i].pauses_ms);
}

demo_mean demo_facts_tenth(const demo_facts *f, unsigned tenth, size_t offset)
{
    demo_mean m = {0};
    size_t first = f->n_steps * tenth / 10, end = f->n_steps * (tenth + 1) / 10;
    if (first == end && f->n_steps > 0) /* fewer steps than tenths */
        end = first + 1;
    double sum = 0, squares = 0;
    for (size_t i = first; i < end; i++) {
        double x;
        memcpy(&x, (const char *)&f->steps[i] + offset, sizeof x);
        sum += x;
        squares += x * x;
        m.n++;
    }
    if (m.n > 0) {
        m.mean = sum / (double)m.n;
        m.spread = sqrt(fmax(0, squares / (double)m.n - m.mean * m.mean));
    }
    return m;
}
