/* Encodes a model's changes block by block on all threads. */
#ifndef DW_CODEC_ENCODE_H
#define DW_CODEC_ENCODE_H

#include "codec/delta.h"
#include "codec/patch.h"

/* Two versions of a tensor. NEXT may be F32 if BASE is BF16: it is rounded. If NEXT
 * has no data, it is BASE with the stores of
 * segments [first_segment, end_segment) of the job's patch. */
typedef struct dw_encode_pair {
    dw_tensor base;
    dw_tensor next;
    dw_digest base_digest; /* in, with digests_known */
    dw_digest new_digest;  /* out */
    size_t first_segment;
    size_t end_segment;
    size_t number; /* of BASE in the caller's list */
} dw_encode_pair;

/* One block of one pair. */
typedef struct dw_encode_item {
    size_t pair;
    uint64_t block;
    const dw_segment *segment; /* the changes, if the job has a patch */

    /* the result */
    uint8_t *bytes; /* from dw_alloc; NULL if nothing changed */
    uint32_t n_bytes;
    dw_block_mode mode;
    uint64_t n_changed;
    dw_digest base_share; /* unless digests_known */
    dw_digest move_share;
} dw_encode_item;

struct dw_encode_job;

/* Encodes blocks elsewhere than on the CPU, if the weights are elsewhere. RUN fills the
 * results of all items and the map of each pair. BASE stays as it is. */
typedef struct dw_encode_device {
    dw_status (*run)(void *context, const struct dw_encode_job *job, dw_class_map *maps,
                     dw_encode_item *items, size_t n_items, dw_error *err);
    void *context;
} dw_encode_device;

/* Blocks of pairs on devices that were compared and encoded before. FETCH fills the
 * results of N_ITEMS items, which are all of pair PAIR, and its map. BASE may be on the
 * host. */
typedef struct dw_encode_capture {
    dw_status (*fetch)(void *context, const dw_encode_pair *pair, dw_class_map *map,
                       dw_encode_item *items, size_t n_items, dw_error *err);
    void *context;
} dw_encode_capture;

typedef struct dw_encode_job {
    dw_encode_pair *pairs; /* names ascending */
    size_t n_pairs;
    bool digests_known;               /* of BASE */
    const dw_patch *patch;            /* or NULL: every pair's NEXT has data */
    const dw_encode_device *device;   /* or NULL; only with DW_CODEC_CLASS, without
                                         update_base and without a patch */
    const dw_encode_capture *capture; /* or NULL: pairs on devices are encoded there */
} dw_encode_job;

/* Makes the delta. With update_base it also stores the changes in BASE. Pairs on devices
 * need DW_CODEC_CLASS, no update_base and no patch. */
dw_status dw_encode(dw_delta **out, dw_encode_job *job, const dw_diff_options *options,
                    dw_error *err);

/* dw_delta_diff with a capture, which may be NULL: pairs of the job have the numbers of
 * BASE. */
dw_status dw_delta_diff_captured(dw_delta **out, const dw_tensor *base,
                                 const dw_tensor *next, size_t n_tensors,
                                 const dw_diff_options *options,
                                 const dw_encode_capture *capture, dw_error *err);

#endif
