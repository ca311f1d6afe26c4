#include "agent/history.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

bool dw_history_init(dw_history *history, size_t n_room)
{
    *history = (dw_history){.n_room = n_room};
    history->rows = dw_alloc_array(n_room, sizeof *history->rows);
    return history->rows != NULL;
}

void dw_history_release(dw_history *history)
{
    dw_free(history->rows);
    *history = (dw_history){0};
}

size_t dw_history_above(const dw_history *history, uint64_t version)
{
    size_t low = 0, high = history->n_rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (history->rows[middle].step.version > version)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The row of VERSION, or NULL; *ABOVE is the first one above it. */
static dw_history_row *find(const dw_history *h, uint64_t version, size_t *above)
{
    *above = dw_history_above(h, version);
    dw_history_row *row = *above > 0 ? &h->rows[*above - 1] : NULL;
    return row && row->step.version == version ? row : NULL;
}

/* Adds a row, unless there is only room for higher ones. */
static void put(dw_history *h, dw_history_row row)
{
    size_t at;
    dw_history_row *same = find(h, row.step.version, &at);
    const bool is_full = h->n_rows == h->n_room;
    if (!same && at == 0 && is_full)
        return;
    h->sequence += same || at < h->n_rows;
    if (!same && is_full) { /* the lowest is dropped */
        at--;
        memmove(h->rows, h->rows + 1, at * sizeof *h->rows);
    } else if (!same) {
        memmove(h->rows + at + 1, h->rows + at, (h->n_rows - at) * sizeof *h->rows);
        h->n_rows++;
    }
    *(same ? same : &h->rows[at]) = row;
}

void dw_history_add_commit(dw_history *history, const dw_version_info *version)
{
    size_t above;
    const uint64_t number = version->version;
    if (find(history, number, &above))
        return; /* commits do not change, and the row of a step has more members */
    const bool is_delta = version->content == DW_CONTENT_DELTA && number > 0;
    put(history, (dw_history_row){.step = {.from = is_delta ? number - 1 : DW_NO_VERSION,
                                           .version = number,
                                           .n_objects = version->n_objects,
                                           .n_bytes = version->n_bytes,
                                           .n_changed = version->n_changed},
                                  .time_ms = dw_time_parse(version->created)});
}

void dw_history_add_step(dw_history *history, const dw_rollout_step *step,
                         int64_t time_ms)
{
    put(history, (dw_history_row){*step, time_ms, true});
}

void dw_history_copy(dw_history *to, const dw_history *from)
{
    memcpy(to->rows, from->rows, from->n_rows * sizeof *from->rows);
    to->n_rows = from->n_rows;
    to->sequence = from->sequence;
}

double dw_step_bits_per_change(const dw_rollout_step *step)
{
    if (step->from == DW_NO_VERSION || step->n_changed == 0)
        return -1;
    return 8 * (double)step->n_bytes / (double)step->n_changed;
}

const dw_step_time dw_step_times[DW_N_STEP_TIMES] = {
    {"fetch", offsetof(dw_rollout_step, fetch_us)},
    {"decode", offsetof(dw_rollout_step, decode_us)},
    {"ready", offsetof(dw_rollout_step, ready_us)},
    {"pause", offsetof(dw_rollout_step, pause_us)},
    {"scatter", offsetof(dw_rollout_step, scatter_us)},
    {"update", offsetof(dw_rollout_step, update_us)},
    {"resume", offsetof(dw_rollout_step, resume_us)},
    {"finish", offsetof(dw_rollout_step, finish_us)},
};

uint64_t dw_step_time_us(const dw_rollout_step *step, const dw_step_time *time)
{
    uint64_t us;
    memcpy(&us, (const char *)step + time->offset, sizeof us);
    return us;
}
