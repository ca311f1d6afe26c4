/* How fast a publisher with a scheme gets to a committed version, in memory. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "quant_bench.h"

static dw_status publish_once(dw_publisher *publisher, quant_timing *best, dw_error *err)
{
    uint64_t ticket;
    dw_publish_report report;
    const quant_timing start = quant_start();
    dw_status status = dw_publisher_publish(publisher, &ticket, NULL, err);
    if (status == DW_OK)
        status = dw_publisher_wait(publisher, ticket, 600000, NULL, &report, err);
    quant_keep_better(best, start);
    return status;
}

/* The weights of W go back and forth between its two versions. */
static dw_status publish_rounds(dw_publisher *publisher, bench_workload *w,
                                quant_timing *best, unsigned n_rounds, dw_error *err)
{
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < n_rounds; i++) {
        const dw_tensor *next = i % 2 ? w->old : w->new_;
        memcpy(w->base[0].data, next[0].data, w->n_bytes);
        status = publish_once(publisher, best, err);
        if (status == DW_OK)
            status = dw_publisher_drain(publisher, err);
    }
    return status;
}

dw_status quant_measure_publish(quant_timing *best, bench_workload *w,
                                const dw_tensor *tensors, size_t n,
                                const quant_options *o, dw_error *err)
{
    dw_store *store;
    dw_publisher *publisher;
    dw_quant_options quantize;
    dw_publish_options options;
    dw_quant_options_init(&quantize);
    quantize.scheme = o->scheme;
    dw_publish_options_init(&options);
    options.quantize = &quantize;
    options.n_threads = o->n_threads;
    options.fold_every = 0; /* not measured here */
    options.anchor_factor = 0;
    options.sweep_every = 0;
    dw_status status = dw_store_open(&store, "mem:quantised", NULL, err);
    if (status != DW_OK)
        return status;
    bench_workload_reset(w);
    status = dw_publisher_open(&publisher, store, tensors, n, &options, err);
    if (status == DW_OK) {
        status = publish_rounds(publisher, w, best, o->n_rounds, err);
        dw_publisher_close(publisher);
    }
    dw_store_close(store);
    return status;
}
