/* Sharded publish: each rank uploads its part and writes a receipt, and rank 0 makes one
 * commit of all receipts (docs/PROTOCOL.md, section 6).
 */
#ifndef DW_PUBLISH_RANKS_H
#define DW_PUBLISH_RANKS_H

#include "deltawire/publish.h"
#include "stream/record.h"
#include "weights/position.h"

/* Draws an id for the objects of a rank. In one round the ids of all ranks begin with the
 * same digits, which shows that the objects belong together. */
dw_status dw_rank_write_id(char out[DW_ID_TEXT], const dw_publisher *p, dw_error *err);

/* Version 0 of a sharded stream. */
dw_status dw_first_version_sharded(dw_publisher *p, dw_error *err);
/* Writes this rank's receipt for the uploaded part to p->job.receipt. */
dw_status dw_receipt_make(dw_publisher *p, dw_error *err);
/* Rank 0: makes one commit of the receipts of all ranks. */
dw_status dw_receipts_commit(dw_publisher *p, const void *const *receipts,
                             const size_t *n_bytes, size_t n_receipts,
                             dw_position *position, dw_publish_report *report,
                             dw_error *err);
/* The same through the store: rank 0 collects the receipts and commits. The others put
 * theirs and wait for the commit, which must name MINE, this rank's objects. */
dw_status dw_receipts_exchange(dw_publisher *p, const dw_objects *mine,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err);

/* When to stop waiting for another rank. */
uint64_t dw_rank_deadline(const dw_publisher *p);
/* The same for the maxima of rank 0. */
uint64_t dw_rank_deadline_of_answer(const dw_publisher *p);
/* Creates this rank's record under KEY. DW_CONFLICT if another process did. */
dw_status dw_rank_put(dw_publisher *p, const char *key, const dw_writer *mine,
                      dw_error *err);
/* DW_UNTRUSTED unless another rank's record, which came through the store, is signed by a
 * trusted key; without trusted keys, by this rank's own, if it signs. */
dw_status dw_rank_check_signer(const dw_publisher *p, const void *bytes, size_t n_bytes,
                               dw_error *err);
/* Waits for the record of another rank. DW_UNAVAILABLE if END has passed. */
dw_status dw_rank_wait(dw_publisher *p, const char *key, uint64_t end, dw_writer *out,
                       dw_error *err);

/* ---- ranks_agree.c: scales that several ranks share ---- */

/* Finds out whether any ranks share scales. All ranks call it, once, before the stream's
 * next version, VERSION. */
dw_status dw_ranks_meet(dw_publisher *p, uint64_t version, dw_error *err);
/* Agrees with the other ranks on the scales that they share; nothing to do if there are
 * none. All ranks call it before they quantise; WITH_KNOWN reads tensors that are known
 * too. DW_NOT_FINITE on all ranks if one of them has such weights there. */
dw_status dw_ranks_agree(dw_publisher *p, bool with_known, dw_error *err);
/* The round failed. Rank 0 says so if it has not answered in it: the others would wait.
 */
void dw_ranks_give_up(dw_publisher *p);

#endif
