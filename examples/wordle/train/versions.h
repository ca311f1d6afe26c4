/* The trainer's end of the stream: a version for each step.
 *
 * A version is encoded, uploaded and committed while the next batch is awaited and
 * computed; before the weights move again it is settled.
 */
#ifndef WORDLE_VERSIONS_H
#define WORDLE_VERSIONS_H

#include <deltawire/deltawire.h>

typedef struct versions versions;

/* Opens or makes the stream at URL. The copy of the newest version, to compare with, lies
 * in BASELINE_DIR, so that a start after a kill reads nothing back. */
dw_status versions_open(versions **out, const char *url, const char *baseline_dir,
                        const dw_tensor *weights, size_t n, dw_error *err);
void versions_close(versions *v);

/* Begins to publish the weights as they are. Nothing may be under way. */
dw_status versions_begin(versions *v, const char *step, dw_error *err);

bool versions_under_way(const versions *v);

/* Waits up to TIMEOUT_MS for what is under way, which it may still be after that.
 * *COMMITTED says whether REPORT is that of a version: where nothing was begun, or the
 * store failed, it is not; what failed is covered by the next one, and stands in ERR.
 * DW_CONFLICT where another trainer took the stream over. */
dw_status versions_settle(versions *v, unsigned timeout_ms, bool *committed,
                          dw_publish_report *report, dw_error *err);

/* Has what is under way given up; it is settled soon. */
void versions_cancel(versions *v);

/* Waits for folds too; what went wrong with those harms nothing. */
void versions_drain(versions *v);

uint64_t versions_newest(versions *v);
const char *versions_stream(const versions *v);

#endif
