#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "cmd_publish.h"
#include "progress_bar.h"

static bool has_same_weights(const dw_peer_publisher *publisher,
                             const cli_weights *weights)
{
    size_t n;
    const dw_tensor *there = dw_peer_publisher_baseline(publisher, &n);
    /* both are sorted by name and of the same model */
    for (size_t i = 0; there && i < n; i++) {
        const dw_tensor *ours = &weights->tensors[i];
        if (ours->n_bytes > 0 && memcmp(there[i].data, ours->data, ours->n_bytes) != 0)
            return false;
    }
    return there != NULL;
}

dw_status cli_publish_proven(dw_peer_publisher *publisher, uint64_t version,
                             dw_peer_publish_report *report, dw_error *err)
{
    dw_peer_publish_report again;
    dw_status status = dw_peer_publisher_publish(publisher, version, report, err);
    if (status != DW_CORRUPT)
        return status;
    status = dw_peer_publisher_publish(publisher, version, &again, err);
    /* if the second read found it good, the first report is right */
    if (status == DW_OK && !again.was_there)
        *report = again;
    return status;
}

dw_status cli_publish_peer(const cli_publish *p, const cli_session *s, dw_store *store,
                           const cli_weights *weights, const char *baseline,
                           cli_published *out, dw_error *err)
{
    dw_peer_publisher *publisher = NULL;
    dw_peer_publish_report report = {0};
    dw_peer_publish_options options = p->peer;
    const double t_start = cli_now();
    cli_progress bar = cli_progress_start(s, "publishing");
    options.progress = cli_progress_hook(&bar);
    options.baseline_dir = baseline;
    out->as_peer = true;
    dw_status status = dw_peer_publisher_open(&publisher, store, weights->tensors,
                                              weights->n_tensors, &options, err);
    const uint64_t head =
        status == DW_OK ? dw_peer_publisher_version(publisher) : DW_NO_VERSION;
    if (status == DW_OK && p->known_head != DW_NO_VERSION && head == DW_NO_VERSION)
        status = dw_fail(err, DW_UNAVAILABLE, p->url,
                         "the store is absent: version %" PRIu64 " was here, and "
                         "now there is none. Mount the store, or move it back",
                         p->known_head);
    if (status == DW_OK && p->expect_head != DW_NO_VERSION && head != p->expect_head)
        status = dw_fail(err, DW_CONFLICT, p->url,
                         "version %" PRIu64 " was the newest, and now there is "
                         "another: somebody else publishes here; stop one of the "
                         "two",
                         p->expect_head);
    out->skipped =
        status == DW_OK && p->skip_same && has_same_weights(publisher, weights);
    report.version = out->same = head;
    if (status == DW_OK && !out->skipped)
        status = cli_publish_proven(publisher, DW_NO_VERSION, &report, err);
    cli_progress_end(&bar);
    dw_peer_publisher_close(publisher);
    dw_digest state = 0;
    if (status == DW_OK && !out->skipped)
        status = cli_weights_state(&state, weights, s, err);
    out->created = head == DW_NO_VERSION && status == DW_OK;
    out->report = (dw_publish_report){
        .version = report.version,
        .unchanged = report.n_changed == 0 && !out->created,
        .n_changed = report.n_changed,
        .n_bytes = report.n_bytes,
        .n_objects = report.n_objects,
        .state = state,
        .total_ms = (uint64_t)(1000 * (cli_now() - t_start)),
    };
    return status;
}
