/* Functions that the command and the extension for Python use beside the public ones.
 * They may change with any version. */
#ifndef DW_INNER_H
#define DW_INNER_H

#include "deltawire/deltawire.h"

/* ---- tensor ---- */

/* The index file, or NULL if the checkpoint is a single file. */
const char *dw_checkpoint_index(const dw_checkpoint *ckpt);

/* ---- codec ---- */

/* What a staged patch takes in memory. */
uint64_t dw_patch_bytes(const dw_patch *patch);

/* The sum of N digests. The shares of slices that cover a tensor once (first_byte in
 * dw_tensor) add up to the tensor's digest. */
dw_digest dw_digest_sum(const dw_digest *digests, size_t n);

/* ---- store ---- */

/* What it knows by now: ask after a request. */
void dw_store_get_facts(dw_store *store, dw_store_facts *out);

/* Requests to a server that this thread begins from now on fail after LIMIT_MS; 0: as the
 * options of their store say. */
void dw_store_limit_thread(unsigned limit_ms);

/* ---- stream ---- */

/* DW_CORRUPT if the last search for the newest version found that latest.json names a
 * newer one, which is missing. A poll of a follower is such a search, too. Reads nothing.
 */
dw_status dw_stream_check_lost(const dw_stream *stream, dw_error *err);

/* dw_stream_shortcuts for shortcuts to the versions FIRST to LAST. Reads only their
 * records. */
dw_status dw_stream_shortcuts_to(dw_stream *stream, uint64_t first, uint64_t last,
                                 const dw_edge **shortcuts, size_t *n_shortcuts,
                                 dw_error *err);

/* ---- quant ---- */

/* The bytes of the quantised model of TENSORS, with its scales; their data is not used.
 * DW_INVALID, with the name of the tensor or pattern, if they cannot be quantised so. */
dw_status dw_quant_model_bytes(uint64_t *n_bytes, const dw_tensor *tensors,
                               size_t n_tensors, const dw_quant_options *options,
                               dw_error *err);

/* ---- publish ---- */

/* Whether the rules take a file of this name. */
bool dw_companion_takes(const dw_companion_rules *rules, const char *name);

/* The state that a version of the weights would have: their digest, rounded and quantised
 * as they are published. Compare it with dw_version_info.state. Reads all of them. Waits
 * for the version in progress. DW_INVALID for shards. */
dw_status dw_publisher_state(dw_publisher *publisher, dw_digest *state, dw_error *err);

/* How far the version under way is. */
typedef struct dw_publish_progress {
    uint64_t n_compared; /* bytes of the weights ... */
    uint64_t n_weights;  /* ... of so many; 0 before the first was read */
    uint64_t n_encoded;  /* bytes of its objects; 0 until all weights are compared */
} dw_publish_progress;
void dw_publisher_progress(dw_publisher *publisher, dw_publish_progress *out);

/* Waits until dw_publisher_drain would not have to wait; false if TIMEOUT_MS passed first
 * (UINT_MAX: no limit). */
bool dw_publisher_drained(dw_publisher *publisher, unsigned timeout_ms);

/* Makes an anchor where the floor of a collection would be that keeps N_KEEP versions, if
 * without it as many versions or more would stay below. */
dw_status dw_compactor_make_floor(dw_compactor *compactor, uint64_t n_keep,
                                  const dw_progress *progress, dw_error *err);

/* What went wrong when the last step removed superseded shortcuts or old versions: that
 * harms no step. Returns it once. DW_DENIED: the compactor may not remove, and no longer
 * tries. */
dw_status dw_compactor_take_fault(dw_compactor *compactor, dw_error *err);

/* DW_DENIED, once, if upkeep may not remove what is superseded. */
dw_status dw_publisher_check_removal(dw_publisher *publisher, dw_error *err);

/* ---- follow ---- */

/* Compares the files that a follower installed in DIR with what it has noted of them, and
 * reports each that is missing or was changed since. *N_FILES is how many were installed.
 * A file that was never installed because the user's own was in its place is not among
 * them. Returns DW_OK also if there are faults. */
dw_status dw_companions_check(const char *dir, dw_fault_fn fn, void *context,
                              size_t *n_files, dw_error *err);

/* Whether the directory may lack companion files of its version, because an earlier
 * process was killed or did not know of them. The next sync completes them. */
bool dw_follower_files_due(const dw_follower *follower);

/* The totals since BEFORE, which is a result of dw_follower_totals; `from` is the version
 * at that time. */
void dw_follower_since(const dw_follower *follower, const dw_follow_report *before,
                       dw_follow_report *out);

#endif
