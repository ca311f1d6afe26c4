/* A restart: a version that only its anchor leads to, for a stream whose newest versions
 * cannot be rebuilt (docs/PROTOCOL.md, section 3).
 */
#ifndef DW_PUBLISH_RESTART_H
#define DW_PUBLISH_RESTART_H

#include "deltawire/publish.h"
#include "stream/record.h"
#include "stream/transfer.h"
#include "weights/position.h"

typedef struct dw_restart {
    dw_scratch_model model; /* its weights, copied to a nameless file, because the
                               caller's may change */
    dw_digest state;
    char write_id[DW_ID_TEXT];
    dw_objects objects; /* the anchor's */
} dw_restart;

/* Makes room for the weights. The caller fills them in, then calls the others in order.
 */
dw_status dw_restart_open(dw_restart *out, const dw_publisher *p, dw_error *err);
void dw_restart_close(dw_restart *restart);
dw_status dw_restart_digest(dw_restart *restart, const dw_publisher *p, dw_error *err);
dw_status dw_restart_upload(dw_restart *restart, dw_publisher *p, dw_error *err);
/* Commits it, then writes the record of its anchor, which names the commit. The caller
 * fills in step, notes and suspect_from of COMMIT. If the commit succeeds and the record
 * fails, p->commits.head is a version that nobody can rebuild, and another restart is
 * due.
 */
dw_status dw_restart_commit(const dw_restart *restart, dw_publisher *p,
                            dw_commit_record *commit, dw_error *err);

#endif
