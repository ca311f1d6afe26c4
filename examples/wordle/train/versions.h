/* The trainer's side of the stream: a version for each step.
 *
 * A version is encoded, uploaded and committed while the trainer waits for the next batch
 * and computes it. Its result is known before the weights change again.
 */
#ifndef WORDLE_VERSIONS_H
#define WORDLE_VERSIONS_H

#include <deltawire/deltawire.h>

typedef struct versions versions;

/* Opens or makes the stream at URL. The baseline is in BASELINE_DIR, so that a start
 * after a kill reads nothing back. */
dw_status versions_open(versions **out, const char *url, const char *baseline_dir,
                        const dw_tensor *weights, size_t n, dw_error *err);
void versions_close(versions *v);

/* Begins to publish the weights. No other version may be in progress. */
dw_status versions_begin(versions *v, const char *step, dw_error *err);

bool versions_under_way(const versions *v);

/* Waits up to TIMEOUT_MS for the version in progress, which may take longer. *COMMITTED
 * is true if REPORT is that of a version; it is false if nothing was begun or the store
 * failed. The next version covers a failed one; ERR has the error. DW_CONFLICT if another
 * trainer took the stream over. */
dw_status versions_settle(versions *v, unsigned timeout_ms, bool *committed,
                          dw_publish_report *report, dw_error *err);

/* Cancels the version in progress; its result is known soon. */
void versions_cancel(versions *v);

/* Also waits for folds; their errors do no harm. */
void versions_drain(versions *v);

uint64_t versions_newest(versions *v);
const char *versions_stream(const versions *v);

#endif
