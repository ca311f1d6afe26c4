/* The baseline: the newest committed version, which the next one is diffed against.
 *
 * Owner: whoever set `busy` of the publisher: its thread for a version or to compare the
 * baseline, dw_publisher_is_current, or the caller's thread between
 * dw_publisher_receipt and dw_publisher_commit. Upkeep reads the weights through
 * held_version.h only.
 */
#ifndef DW_PUBLISH_BASELINE_H
#define DW_PUBLISH_BASELINE_H

#include "deltawire/publish.h"
#include "follow/follower.h"
#include "publish/delta_upload.h"

typedef struct dw_baseline {
    dw_follower *follower; /* the whole model, in a directory or in `memory` */
    uint8_t *memory;       /* anonymous, of whole tensors or of shards */
    void **data;           /* [pieces.owned.n] */
    dw_tensor *views;      /* [pieces.cut.n] */
    dw_digest *digests;    /* [pieces.cut.n] as they were committed */
    bool is_lost;          /* it must be brought to the head again */
    bool is_broken;   /* and cannot be: a version before the head does not decode. The
                         next version is a restart */
    uint64_t *proven; /* [pieces.cut.n] the version at which each piece was last
                         compared with what was committed */
    size_t sweep_at;  /* the piece that is compared next */
    uint64_t suspect_from; /* followers may be wrong from this version on: the next commit
                              says so. 0: none */
} dw_baseline;

/* Once the pieces are cut. */
dw_status dw_baseline_open(dw_publisher *p, dw_error *err);
void dw_baseline_close(dw_baseline *baseline);
/* Points the views at the weights, and takes their digests. */
dw_status dw_baseline_connect(dw_publisher *p, dw_error *err);
/* Takes room for the baseline and copies the caller's weights into it. */
dw_status dw_baseline_allocate(dw_publisher *p, dw_error *err);
/* Brings it to the stream's head. If that does not decode, sets p->baseline.is_broken,
 * and the baseline stays lost. */
dw_status dw_baseline_catch_up(dw_publisher *p, dw_error *err);
/* Moves it to version POSITION, which UPLOADED leads to. A failure loses it, not the
 * version. */
void dw_baseline_advance(dw_publisher *p, const dw_position *position,
                         const dw_uploaded *uploaded);
/* It cannot be relied on: the next publish brings it to the head anew. */
void dw_baseline_lose(dw_publisher *p);

/* Lets upkeep see the baseline, which is version p->commits.head. */
void dw_baseline_show(dw_publisher *p);

/* False if the files of a baseline in a directory shrank. */
bool dw_baseline_is_whole(const dw_publisher *p);
/* Makes it the caller's weights DATA, as version POSITION: for version 0. */
dw_status dw_baseline_take_live(dw_publisher *p, void *const *data,
                                const dw_position *position, dw_error *err);

/* ---- sweep.c ---- */

/* The baseline was just compared with the stream, all of it. */
dw_status dw_sweep_begin(dw_publisher *p, dw_error *err);
/* Compares the next share of the baseline with what was committed. A baseline that is
 * damaged is read back from the stream; fails if it cannot be. */
dw_status dw_sweep_share(dw_publisher *p, dw_error *err);
/* The same for all of it. *DAMAGED: whether it was. */
dw_status dw_sweep_all(dw_publisher *p, bool *damaged, dw_error *err);

/* Versions from VERSION on may not be the trainer's weights. */
void dw_sweep_suspect(dw_publisher *p, uint64_t version);
/* All versions since the baseline was last compared may not be. */
void dw_sweep_suspect_all(dw_publisher *p);
/* The first of the committed versions of which that is so; 0: none. */
uint64_t dw_sweep_suspect_from(const dw_publisher *p);

/* ---- baseline_mark.c ---- */

/* Whether DIR is a publisher's. *PROVEN takes the version at which all of the baseline
 * was last compared with STREAM; DW_NO_VERSION if that is not known. */
bool dw_mark_read(const char *dir, const char *stream, uint64_t *proven);
/* If DIR is the baseline of another stream than STREAM, moves it to DIR.of-OTHER-TIME and
 * makes DIR anew. */
dw_status dw_mark_set_aside(const char *dir, const char *stream, dw_error *err);
dw_status dw_mark_write(const char *dir, const char *stream, uint64_t proven,
                        dw_error *err);

#endif
