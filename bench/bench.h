/* All measurements of `deltawire bench`, in one run, so that their ratios are meaningful
 * on a noisy machine. */
#ifndef DW_BENCH_BENCH_H
#define DW_BENCH_BENCH_H

#include "peers.h"

typedef struct bench_options {
    const char *trace; /* directory of the real trace, or NULL for synthetic weights */
    uint64_t n_bytes;  /* of one version of the weights */
    unsigned step;     /* of the trace, from 1; its last one if it has fewer */
    unsigned n_threads;
    unsigned n_rounds; /* the best of these counts */
} bench_options;

enum { BENCH_PEERS = 4 };

typedef struct bench_report {
    const char *kind;
    uint64_t n_bytes; /* of one version */
    uint64_t n_elems;
    uint64_t n_changed;

    double copy_rate;       /* bytes copied a second by memcpy on one thread */
    double encode_rate;     /* bytes of weights a second: diff, encode, update the base */
    double stage_rate;      /* ... decode to a list of stores, verified */
    double digest_rate;     /* ... of all weights */
    double scatter_seconds; /* for the stores */

    uint64_t delta_bytes;
    uint64_t encode_memory; /* peak beyond the weights and the encoded delta */
    uint64_t apply_memory;
    bool equal;

    unsigned n_steps; /* of the trace, 0 without */
    uint64_t step_bytes;
    uint64_t step_changes;

    struct {
        const char *name;
        bench_peer_result result;
    } peers[BENCH_PEERS];
} bench_report;

/* Calls SAY, which may be NULL, with the name of each measurement. */
dw_status bench_run(bench_report *out, const bench_options *options,
                    void (*report_phase)(const char *phase), dw_error *err);

#endif
