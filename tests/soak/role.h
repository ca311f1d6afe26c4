/* What the roles of the soak tests, processes of soak_role, say to their drivers. */
#ifndef DW_SOAK_ROLE_H
#define DW_SOAK_ROLE_H

#include "deltawire/store.h"

enum {
    SOAK_FINE = 0,
    SOAK_FAULT = 2,  /* something that must not happen: it stands in the log */
    SOAK_FENCED = 3, /* a publisher that another one replaced */
};

/* Opens the store at URL; the server of s3:// is DW_TEST_S3_ENDPOINT. */
dw_status soak_store_open(dw_store **out, const char *url, dw_error *err);

/* One line on stderr: what was done, and what came of it. */
void soak_say(const char *what, dw_status status, const dw_error *err);

/* ---- the end of a process by plan (watch.c) ---- */

/* When the process is to send itself SIGKILL:
 *
 *     never
 *     call:N            before the Nth call to the store
 *     at:WHAT:N:US      US microseconds after the Nth thing begins that WHAT is the
 *                       beginning of: the key of a put or remove, or the name of an event
 *     after:WHAT:N      at the first call to the store, or event, after that
 *     stop:WHAT:N       SIGSTOP, when the Nth such thing begins
 *
 * False where PLAN is none of these. */
bool soak_doom(const char *plan);

/* Of a hundred calls to the store so many wait for up to so long before they begin; of
 * the puts that decide something, ten times as many. */
void soak_slow(uint64_t luck, uint64_t percent, uint64_t most_us);

/* INNER, with its calls watched. INNER must outlive it. */
dw_status soak_doom_store(dw_store **out, dw_store *inner, dw_error *err);

void soak_event(const char *name);

#endif
