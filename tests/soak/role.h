/* Shared by the roles of the soak tests, which are processes of soak_role, and their
 * drivers. */
#ifndef DW_SOAK_ROLE_H
#define DW_SOAK_ROLE_H

#include "deltawire/store.h"

enum {
    SOAK_FINE = 0,
    SOAK_FAULT = 2,  /* something that must not happen: see the log */
    SOAK_FENCED = 3, /* a publisher that another one replaced */
};

/* Opens the store at URL; the server of s3:// is DW_TEST_S3_ENDPOINT. */
dw_status soak_store_open(dw_store **out, const char *url, dw_error *err);

/* Prints one line on stderr: an action and its result. */
void soak_say(const char *what, dw_status status, const dw_error *err);

/* ---- planned ends of processes (watch.c) ---- */

/* Sets when the process sends itself SIGKILL:
 *
 *     never
 *     call:N            before the Nth call to the store
 *     at:WHAT:N:US      US microseconds after the Nth thing begins that WHAT is the
 *                       beginning of: the key of a put or remove, or the name of an event
 *     after:WHAT:N      at the first call to the store, or event, after that
 *     stop:WHAT:N       SIGSTOP, when the Nth such thing begins
 *
 * False if PLAN is none of these. */
bool soak_doom(const char *plan);

/* Sets how many of a hundred calls to the store wait, and for how long at most. Ten times
 * as many of the important puts wait. */
void soak_slow(uint64_t luck, uint64_t percent, uint64_t most_us);

/* Wraps INNER and watches its calls. INNER must outlive it. */
dw_status soak_doom_store(dw_store **out, dw_store *inner, dw_error *err);

void soak_event(const char *name);

#endif
