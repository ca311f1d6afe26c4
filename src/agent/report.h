/* The latest reports to the agent. It holds plain values, and shared blocks that never
 * change. A reader copies it under the lock, in microseconds, and formats it without the
 * lock. */
#ifndef DW_AGENT_REPORT_H
#define DW_AGENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/histogram.h"
#include "agent/history.h"
#include "agent/agent.h"

#define DW_AGENT_ERRORS        20
#define DW_AGENT_MAX_FOLLOWERS 4096 /* more are not shown */

typedef struct dw_reported_engine {
    char driver[32];
    char where[512]; /* may be empty */
    dw_engine_state state;
    uint64_t version;
    char software[64];
    dw_error error;
} dw_reported_engine;

typedef struct dw_reported_error {
    dw_error error;
    int64_t since_ms;
    int64_t until_ms; /* 0: it lasts */
} dw_reported_error;

typedef struct dw_reported_followers {
    size_t n_items;
    dw_follower_info items[]; /* their texts follow */
} dw_reported_followers;

typedef struct dw_report {
    bool stream_only;
    int64_t started_ms;

    const dw_agent_identity *identity; /* shared; NULL: not known yet */
    uint64_t head;                     /* or DW_NO_VERSION */
    int64_t head_ms;                   /* when it was committed; 0: unknown */
    const char *head_step;             /* shared; may be NULL */
    uint64_t version;                  /* or DW_NO_VERSION */
    int64_t next_ms; /* when the first version above it was committed; 0: unknown */
    dw_phase phase;
    uint64_t phase_version;
    uint64_t pinned; /* or DW_NO_VERSION */

    const dw_reported_followers *followers; /* shared; may be NULL */
    dw_store_counts counts;

    uint64_t n_steps, n_objects, n_bytes, n_changed; /* of all steps */
    dw_histogram times[DW_N_STEP_TIMES];
    dw_histogram stopped;
    uint64_t n_failures, n_verified, n_verify_failures;
    bool verify_failed;  /* the last one */
    bool command_failed; /* the last one */
    uint64_t failing_at; /* dw_clock_ms() of the first error in a row; 0: none */

    dw_reported_error errors[DW_AGENT_ERRORS]; /* newest first */
    size_t n_errors;
    dw_reported_engine engines[DW_MAX_ENGINES];
    size_t n_engines;
    dw_history history;
} dw_report;

/* False when out of memory. */
bool dw_report_init(dw_report *report, bool stream_only, size_t n_history);
void dw_report_release(dw_report *report);

/* Copies FROM to TO, which must have the same room for history. */
void dw_report_copy(dw_report *to, const dw_report *from);

/* ---- shared blocks ---- */

/* A block with one owner; NULL when out of memory. */
void *dw_shared_new(size_t n_bytes);

/* Drops an owner; the last one frees the block. Accepts NULL. */
void dw_shared_drop(const void *block);

/* ---- computed from it (facts.c), at NOW_MS of the wall clock ---- */

/* False if it is not known. */
bool dw_report_lag_versions(const dw_report *report, uint64_t *n);
bool dw_report_lag_seconds(const dw_report *report, int64_t now_ms, double *seconds);

/* The error that lasts, or NULL. */
const dw_reported_error *dw_report_current_error(const dw_report *report);

#define DW_READY_REASON (DW_ERROR_LINE_SIZE + 64)

/* Whether all is well at CLOCK_MS, a time of dw_clock_ms(). If not, REASON takes the
 * reason, with the whole error, as `deltawire status` shows it. Without IS_TRUSTED, for
 * clients without the token, it only has the error's code: the text may name files and
 * stores. */
bool dw_report_ready(const dw_report *report, uint64_t clock_ms, bool is_trusted,
                     char reason[DW_READY_REASON]);

#endif
