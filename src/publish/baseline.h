/* The baseline: the publisher's copy of the newest committed version. The next version is
 * diffed against it.
 *
 * Owner: the thread that set `busy` of the publisher. That is the publisher's thread
 * while it makes a version or checks the baseline, or a thread in
 * dw_publisher_is_current.
 */
#ifndef DW_PUBLISH_BASELINE_H
#define DW_PUBLISH_BASELINE_H

#include "deltawire/publish.h"
#include "follow/follower.h"
#include "publish/delta_upload.h"

typedef enum dw_base_state {
    DW_BASE_READY,
    DW_BASE_BEHIND, /* it must catch up with the head before it is used */
    DW_BASE_BROKEN, /* it cannot: a version does not decode. The next one is a restart */
} dw_base_state;

typedef struct dw_baseline {
    dw_follower *follower; /* the whole model, in a directory or in `memory` */
    bool in_memory;        /* whole tensors or shards; else it is in a directory */
    uint8_t *memory;       /* of the host */
    dw_place *on_devices;  /* [n_devices] memory for the weights of each device: its own,
                              or pinned memory of the host */
    size_t n_devices;
    bool is_pinned;      /* it is the latter */
    dw_device **devices; /* [pieces.owned.n] where `data` is: NULL on the host */
    uint64_t n_moves;    /* how often it was read from the stream or moved on */
    void **data;         /* [pieces.owned.n] */
    dw_tensor *views;    /* [pieces.cut.n] */
    dw_digest *digests;  /* [pieces.cut.n] as they were committed */
    dw_base_state state;
    uint64_t *proven;      /* [pieces.cut.n] the version at which each piece was last
                              compared with its committed digest */
    size_t sweep_at;       /* the piece to compare next */
    uint64_t sweep_due;    /* bytes that should have been compared by now */
    uint64_t suspect_from; /* from this version on followers may hold wrong weights. The
                              next commit reports it. 0: none */
} dw_baseline;

/* The options with which a publisher follows its own stream. */
dw_follow_options dw_publisher_follow_options(const dw_publisher *p);

/* Once the pieces are cut. */
dw_status dw_baseline_open(dw_publisher *p, dw_error *err);
void dw_baseline_close(dw_baseline *baseline);
/* Points the views at the weights, and takes their digests. */
dw_status dw_baseline_connect(dw_publisher *p, dw_error *err);
/* Opens the directory, or allocates memory and, unless the publish is sharded, copies the
 * caller's weights into it. */
dw_status dw_baseline_allocate(dw_publisher *p, dw_error *err);
/* Copies the caller's weights, as they are published, into the memory. */
dw_status dw_baseline_copy_live(dw_publisher *p, dw_error *err);
/* Follows the stream to its head: then the baseline is READY or, if a version does not
 * decode, BROKEN. Returns DW_OK in both cases. */
dw_status dw_baseline_catch_up(dw_publisher *p, dw_error *err);
/* Applies UPLOADED, which leads to version POSITION. After a failure the baseline is
 * lost; the version is committed all the same. */
void dw_baseline_advance(dw_publisher *p, const dw_position *position,
                         const dw_uploaded *uploaded);
/* The baseline may be damaged. The next publish lets it catch up, and trusts none of it.
 */
void dw_baseline_lose(dw_publisher *p);
/* The stream is ahead of the baseline. The next publish lets it catch up. */
void dw_baseline_fall_behind(dw_publisher *p);

/* False if the baseline is in a directory and its files shrank. */
bool dw_baseline_is_whole(const dw_publisher *p);
/* Version 0: copies the caller's weights, DATA, as version POSITION. */
dw_status dw_baseline_take_live(dw_publisher *p, void *const *data,
                                const dw_position *position, dw_error *err);

/* ---- the sweep ---- */

/* Notes that all of the baseline was just compared with the stream. */
dw_status dw_sweep_begin(dw_publisher *p, dw_error *err);
/* Compares the next share of the baseline with the committed digests. If it is damaged,
 * reads it back from the stream, and fails if that fails. Stops early if a call waits for
 * the baseline, unless a whole round is due. */
dw_status dw_sweep_share(dw_publisher *p, dw_error *err);
/* The same for all of it. *DAMAGED: whether it was damaged. */
dw_status dw_sweep_all(dw_publisher *p, bool *damaged, dw_error *err);

/* Notes that versions from VERSION on may differ from the trainer's weights. */
void dw_sweep_suspect(dw_publisher *p, uint64_t version);
/* Notes it for all versions since the baseline was last compared. */
void dw_sweep_suspect_all(dw_publisher *p);
/* The first committed version that was noted; 0: none. */
uint64_t dw_sweep_suspect_from(const dw_publisher *p);
/* A commit reported them. */
void dw_sweep_forget_suspects(dw_publisher *p);

/* ---- baseline_mark.c ---- */

/* Whether DIR is marked as a baseline. *PROVEN takes the version at which all of it was
 * last compared with STREAM; DW_NO_VERSION if the mark does not say. */
bool dw_mark_read(const char *dir, const char *stream, uint64_t *proven);
/* If DIR is the baseline of a stream OTHER than STREAM, moves it to DIR.of-OTHER-TIME and
 * makes an empty DIR. */
dw_status dw_mark_set_aside(const char *dir, const char *stream, dw_error *err);
dw_status dw_mark_write(const char *dir, const char *stream, uint64_t proven,
                        dw_error *err);

#endif
