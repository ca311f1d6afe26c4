/* A base: the checkpoint behind a version 0 that was not uploaded, and the SHA-256 of its
 * tensors. The digest of the state finds damage; only a cryptographic hash
 * withstands an attacker who chooses the weights (docs/PROTOCOL.md, section 2). */
#ifndef DW_FOLLOW_BASE_H
#define DW_FOLLOW_BASE_H

#include "weights/target.h"

/* TENSORS are in the order of the stream's table. */
dw_status dw_base_hash(uint8_t out[DW_SHA256_BYTES], const dw_tensor *tensors,
                       size_t n_tensors, unsigned n_threads, dw_error *err);

/* DW_UNTRUSTED unless they have the hash WANTED, if that is given. WHERE is for errors.
 */
dw_status dw_base_hash_check(const uint8_t wanted[DW_SHA256_BYTES],
                             const dw_tensor *tensors, size_t n_tensors,
                             unsigned n_threads, const char *where, dw_error *err);

/* The checkpoint at PATH, proven to be the base that the step names. */
typedef struct dw_base {
    dw_checkpoint *ckpt;
    dw_target *source; /* its tensors, in the order of the stream's table */
} dw_base;

dw_status dw_base_open(dw_base *out, const dw_stream *stream, const dw_route_step *step,
                       const char *path, unsigned n_threads, dw_error *err);
void dw_base_close(dw_base *base);

#endif
