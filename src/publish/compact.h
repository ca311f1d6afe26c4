/* The compactor: a follower of its own stream that adds folds and anchors to it, so that
 * others catch up quickly. It reads versions only through the store, so it may run
 * anywhere: as a thread of the publisher, or in another process.
 *
 *     nothing due ──> due ──> the scratch model follows to where the shortcut begins
 *          ^                    │ a fold: that is copied, and the model follows on
 *          └── hint put <── record created <── objects uploaded, their state proven
 *
 * All that it keeps is the scratch model, in a file without a name. If it is killed, that
 * is gone, and the next one goes on from what the stream has. If two work on one stream,
 * the record that comes second is refused, and its objects are removed. A collection
 * takes nothing at the newest anchor or above, which is all that a compactor needs.
 */
#ifndef DW_PUBLISH_COMPACT_H
#define DW_PUBLISH_COMPACT_H

#include "deltawire/stream.h"
#include "publish/hint.h"
#include "tensor/device.h"

/* As dw_compactor_open. HINT is shared with the writer of the stream, and knows its head;
 * FORK_STORE is the store of the stream that this one forks from, or NULL. Both are
 * borrowed. */
dw_status dw_compactor_open_with(dw_compactor **out, dw_store *store,
                                 const dw_compact_options *options, dw_hint *hint,
                                 dw_store *fork_store, dw_error *err);

/* Begins with WEIGHTS, one place a tensor of the stream, which are VERSION; else it
 * begins with the newest anchor. Before the first step. */
dw_status dw_compactor_seed(dw_compactor *compactor, const dw_place *weights,
                            uint64_t version, dw_error *err);

#endif
