/* One client's connection through the proxy: request by request, with faults. */
#ifndef DW_TESTS_FAULT_RELAY_H
#define DW_TESTS_FAULT_RELAY_H

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fault_plan.h"
#include "http_wire.h"
#include "list_memory.h"

/* What all connections share. */
typedef struct proxy {
    const struct addrinfo *server;
    fault_plan *plan;
    int delay_ms, stall_ms;
    list_memory lists;
    atomic_ullong n_requests;
    atomic_ullong n_faults[N_FAULTS]; /* faults that happened */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t left;  /* a connection ended */
    struct relay *first;
    bool stopping;
} proxy;

typedef struct relay {
    proxy *proxy;
    struct relay *before,
        *after; /* guarded by proxy->lock, like changes of the two fds */
    wire client, server;
} relay;

/* Serves the client until one side leaves. */
void relay_run(relay *r);

#endif
