/* Reports that a server does not answer: dw_store_options.on_wait. */
#ifndef DW_STORE_WAIT_REPORT_H
#define DW_STORE_WAIT_REPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "deltawire/store.h"

/* One for each store. */
typedef struct dw_wait_reporter {
    void (*on_wait)(void *context, const dw_error *wait); /* or NULL */
    void *context;
    atomic_bool has_answered; /* the server has, at least once */
} dw_wait_reporter;

/* One for each request, or group of requests, that is waited for. */
typedef struct dw_wait {
    uint64_t since_ms;
    uint64_t report_ms; /* when the next report is due, after since_ms */
} dw_wait;

/* The wait begins now, or begins again because the server sent something. */
void dw_wait_begin(dw_wait *wait, uint64_t now_ms);

/* Reports the wait if it is due. A slow answer to a first try is not reported, unless the
 * server has never answered. N_TRIES were begun. */
void dw_wait_check(dw_wait *wait, dw_wait_reporter *reporter, const char *url,
                   unsigned n_tries, uint64_t now_ms);

#endif
