/* How other systems ship weights, each implemented in C on all threads. */
#ifndef DW_BENCH_PEERS_H
#define DW_BENCH_PEERS_H

#include "workload.h"

typedef struct bench_peer_result {
    double encode_seconds;
    double apply_seconds; /* from bytes to new weights in memory */
    uint64_t n_bytes;
    bool equal; /* the weights came out right */
} bench_peer_result;

/* slime: XOR of old and new, one zstd-1 frame a tensor. */
dw_status bench_peer_xor(bench_peer_result *out, bench_workload *w, unsigned n_threads,
                         dw_error *err);

/* PULSE: gaps in bytes (255: continued), then the new values; zstd-1 over both. */
dw_status bench_peer_gaps(bench_peer_result *out, bench_workload *w, unsigned n_threads,
                          dw_error *err);

/* TRL's files, made and applied by this library. */
dw_status bench_peer_trl(bench_peer_result *out, bench_workload *w, dw_codec codec,
                         unsigned n_threads, dw_error *err);

#endif
