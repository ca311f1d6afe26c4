#include "versions.h"

#include <stdlib.h>

#include "fail.h"

struct versions {
    dw_store *store;
    dw_publisher *publisher;
    uint64_t ticket;
    bool under_way;
};

dw_status versions_open(versions **out, const char *url, const char *baseline_dir,
                        const dw_tensor *weights, size_t n, dw_error *err)
{
    versions *v = calloc(1, sizeof *v);
    if (!v)
        return wordle_fail(err, DW_NO_MEMORY, url, "out of memory");
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.baseline_dir = baseline_dir;
    options.n_threads = 1;
    options.first_step = "0";
    /* A step of such a small model is a large part of it, so anchors are rare. */
    options.anchor_factor = 4;
    dw_status status = dw_store_open(&v->store, url, NULL, err);
    if (status == DW_OK)
        status = dw_publisher_open(&v->publisher, v->store, weights, n, &options, err);
    if (status != DW_OK) {
        versions_close(v);
        return status;
    }
    *out = v;
    return DW_OK;
}

void versions_close(versions *v)
{
    if (!v)
        return;
    dw_publisher_close(v->publisher);
    dw_store_close(v->store);
    free(v);
}

dw_status versions_begin(versions *v, const char *step, dw_error *err)
{
    const dw_publish_note note = {.struct_bytes = sizeof note, .step = step};
    dw_status status = dw_publisher_publish(v->publisher, &v->ticket, &note, err);
    v->under_way = status == DW_OK;
    return status;
}

bool versions_under_way(const versions *v)
{
    return v->under_way;
}

dw_status versions_settle(versions *v, unsigned timeout_ms, bool *committed,
                          dw_publish_report *report, dw_error *err)
{
    bool done = false;
    *committed = false;
    if (!v->under_way)
        return DW_OK;
    dw_status status =
        dw_publisher_wait(v->publisher, v->ticket, timeout_ms, &done, report, err);
    if (status == DW_UNAVAILABLE && !done)
        return DW_OK;
    v->under_way = false;
    *committed = status == DW_OK;
    return status == DW_CONFLICT || status == DW_NO_MEMORY ? status : DW_OK;
}

void versions_cancel(versions *v)
{
    dw_publisher_cancel(v->publisher);
}

void versions_drain(versions *v)
{
    dw_publisher_drain(v->publisher, NULL);
}

uint64_t versions_newest(versions *v)
{
    return dw_publisher_version(v->publisher);
}

const char *versions_stream(const versions *v)
{
    return dw_publisher_stream_id(v->publisher);
}
