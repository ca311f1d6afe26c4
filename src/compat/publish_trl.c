/* TRL's files: an anchor with the whole model, or a delta from codec/trl_write.c.
 *
 * A step without changes becomes a delta without tensors. TRL's own trainer counts such a
 * step but writes no file, so a reader of the bucket cannot distinguish it from a lost
 * upload. TRL's readers accept a file without tensors, and the numbers have no gap.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "codec/delta.h"
#include "codec/trl_delta.h"
#include "compat/peer_publish_int.h"
#include "tensor/dtype.h"

static void write_names(dw_writer *w, const dw_peer_job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        dw_write_text(w, i ? ", " : "[");
        dw_write_json_string(w, job->next[i].name);
    }
    dw_write_text(w, job->n ? "]" : "[]");
    dw_write_u8(w, 0);
}

/* All metadata are strings, formatted as by Python's str(). */
static dw_status put_anchor(dw_peer_publisher *p, const dw_peer_job *job, const char *key,
                            dw_peer_publish_report *report, dw_error *err)
{
    char version[24], n_params[24], n_elems[24];
    uint64_t total = 0;
    for (size_t i = 0; i < job->n; i++)
        total += dw_tensor_units(&job->next[i]);
    snprintf(version, sizeof version, "%" PRIu64, job->version);
    snprintf(n_params, sizeof n_params, "%zu", job->n);
    snprintf(n_elems, sizeof n_elems, "%" PRIu64, total);
    dw_writer names = {0};
    write_names(&names, job);
    if (names.failed) {
        dw_writer_release(&names);
        return dw_fail_memory(err, key);
    }
    const bool gaps = p->options.trl_codec == DW_CODEC_GAP;
    const dw_pair metadata[] = {
        {"format", DW_TRL_FORMAT},
        {"version", "1"},
        {"sparse", "False"},
        {"model_version", version},
        {"num_changed_params", n_params},
        p->options.trl_layout == 1
            ? (dw_pair){"changed_params", (const char *)names.bytes}
            : (dw_pair){"encoding", gaps ? "gap_delta" : "raw"},
        {"total_changed_elements", n_elems},
        {"total_elements", n_elems},
        {"sparsity", "0.0"},
    };
    dw_status status =
        dw_peer_put_file(p, key, job->next, job->n, metadata,
                         sizeof metadata / sizeof metadata[0], report, err);
    dw_writer_release(&names);
    return status;
}

static dw_status put_delta(dw_peer_publisher *p, const dw_peer_job *job, const char *key,
                           dw_peer_publish_report *report, dw_error *err)
{
    dw_delta *delta;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = p->options.trl_codec;
    options.trl_layout = p->options.trl_layout;
    options.n_threads = p->options.n_threads;
    options.base_version = job->base_version;
    options.new_version = job->version;
    dw_status status = dw_delta_diff(&delta, job->base, job->next, job->n, &options, err);
    if (status != DW_OK)
        return status;
    const dw_source source = {
        .n_bytes = delta->info.n_bytes, .read = dw_delta_read_at, .context = delta};
    report->n_changed = delta->info.n_changed;
    status = dw_peer_put(p, key, &source, report, err);
    dw_delta_close(delta);
    return status;
}

dw_status dw_publish_trl(dw_peer_publisher *p, const dw_peer_job *job,
                         dw_peer_publish_report *report, dw_error *err)
{
    char keys[DW_PEER_RECORDS][DW_PEER_KEY]; /* a delta's and an anchor's */
    dw_peer_record_keys(keys, DW_PEER_TRL, job->version);
    return job->whole ? put_anchor(p, job, keys[1], report, err)
                      : put_delta(p, job, keys[0], report, err);
}
