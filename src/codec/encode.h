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
} dw_encode_pair;

typedef struct dw_encode_job {
    dw_encode_pair *pairs; /* names ascending */
    size_t n_pairs;
    bool digests_known;    /* of BASE */
    const dw_patch *patch; /* or NULL: every pair's NEXT has data */
} dw_encode_job;

/* Makes the delta. With update_base it also stores the changes in BASE. */
dw_status dw_encode(dw_delta **out, dw_encode_job *job, const dw_diff_options *options,
                    dw_error *err);

#endif
