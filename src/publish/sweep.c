/* The sweep: after each version a share of the baseline is compared with the committed
 * digests, so that all of it is compared within `sweep_every` versions.
 *
 * If a bit of the baseline flips, later deltas lead followers to other weights than the
 * trainer's, and only the publisher can see it. If a share differs, the baseline is read
 * back from the stream. Then it holds what followers hold, and the next delta brings them
 * to the trainer's weights. The commit of that version reports from which version on
 * followers may have been wrong.
 *
 * If the bit belongs to an exponent, followers cannot decode later deltas. They stop, and
 * the baseline cannot be read back. Then the next version is a restart.
 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "publish/publisher.h"

/* ---- the version at which each piece was compared ---- */

/* The oldest version at which a piece was last compared. */
static uint64_t oldest_proof(const dw_publisher *p)
{
    uint64_t oldest = p->commits.head.version;
    for (size_t i = 0; i < p->pieces.cut.n; i++)
        if (p->baseline.proven[i] < oldest)
            oldest = p->baseline.proven[i];
    return oldest;
}

static dw_status note_proven(dw_publisher *p, dw_error *err)
{
    return p->options.baseline_dir && !p->sharded
               ? dw_mark_write(p->options.baseline_dir, p->stream->record.stream,
                               oldest_proof(p), err)
               : DW_OK;
}

dw_status dw_sweep_begin(dw_publisher *p, dw_error *err)
{
    if (!p->baseline.proven)
        p->baseline.proven = dw_alloc_array(p->pieces.cut.n, sizeof *p->baseline.proven);
    if (!p->baseline.proven)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < p->pieces.cut.n; i++)
        p->baseline.proven[i] = p->commits.head.version;
    return note_proven(p, err);
}

/* ---- repairing ---- */

void dw_sweep_suspect(dw_publisher *p, uint64_t version)
{
    if (p->baseline.suspect_from == 0 || version < p->baseline.suspect_from)
        p->baseline.suspect_from = version;
}

void dw_sweep_suspect_all(dw_publisher *p)
{
    dw_sweep_suspect(p, oldest_proof(p) + 1);
}

void dw_sweep_forget_suspects(dw_publisher *p)
{
    p->baseline.suspect_from = 0;
}

uint64_t dw_sweep_suspect_from(const dw_publisher *p)
{
    return p->baseline.suspect_from < dw_commit_next_version(p) ? p->baseline.suspect_from
                                                                : 0;
}

/* Reads the baseline back. If that fails, the next publish tries again. */
static dw_status repair(dw_publisher *p, const char *tensor, dw_error *err)
{
    dw_error fault = {0};
    dw_baseline_lose(p);
    if (dw_publisher_is_closing(p))
        return DW_OK; /* the next publisher repairs it */
    dw_status status = dw_baseline_catch_up(p, &fault);
    if (status == DW_OK) {
        if (p->options.rank == 0)
            (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
        return DW_OK;
    }
    return dw_fail_tensor(err, status, p->options.baseline_dir, tensor,
                          "the baseline is damaged, and could not be read back from the "
                          "stream: %s. Nothing is published until that succeeds",
                          fault.text);
}

/* Compares pieces [FIRST, FIRST + N) with their committed digests. */
static dw_status compare(dw_publisher *p, size_t first, size_t n, bool *damaged,
                         dw_error *err)
{
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    dw_status status = digests
                           ? dw_digest_tensors(digests, NULL, p->baseline.views + first,
                                               n, p->options.n_threads, NULL, err)
                           : dw_fail_memory(err, NULL);
    const dw_slice *bad = NULL;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        if (digests[i] == p->baseline.digests[first + i]) {
            p->baseline.proven[first + i] = p->commits.head.version;
        } else {
            bad = &p->pieces.cut.items[first + i];
            dw_sweep_suspect(p, p->baseline.proven[first + i] + 1);
        }
    }
    dw_free(digests);
    *damaged = bad != NULL;
    return bad ? repair(p, p->pieces.table[bad->tensor].name, err) : status;
}

/* ---- the sweep ---- */

dw_status dw_sweep_all(dw_publisher *p, bool *damaged, dw_error *err)
{
    return compare(p, 0, p->pieces.cut.n, damaged, err);
}

dw_status dw_sweep_share(dw_publisher *p, dw_error *err)
{
    const unsigned n_versions = p->options.sweep_every;
    const size_t n = p->pieces.cut.n;
    if (n_versions == 0 || n == 0 || p->baseline.is_lost)
        return DW_OK;
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < n; i++)
        total += p->baseline.views[i].n_bytes;
    const uint64_t wanted = total / n_versions + 1;
    dw_status status = DW_OK;
    bool damaged = false;
    for (size_t left = n; status == DW_OK && !damaged && left > 0 && done < wanted;) {
        const size_t first = p->baseline.sweep_at;
        size_t k = 0;
        while (first + k < n && k < left && done < wanted)
            done += p->baseline.views[first + k++].n_bytes;
        left -= k;
        p->baseline.sweep_at = (first + k) % n;
        status = compare(p, first, k, &damaged, err);
        if (status == DW_OK && !damaged && p->baseline.sweep_at == 0)
            status = note_proven(p, err);
    }
    return status;
}
