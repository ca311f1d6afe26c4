/* Encodes the changes of weights in a device's memory. Only encoded bytes leave it, and
 * dense blocks, which zstd packs on the host. The old weights are only read.
 *
 * Launches, for all tensors together:
 *
 *     choose    the class base of each tensor, from a sample of the old weights
 *     compare   reads old and new weights once and lists the changes; after it the new
 *               weights may change
 *     model     sorts a block's changes by class, fits, writes symbols and plain bits
 *     ans       codes the symbols
 *     pack      puts blocks one after the other
 *     rebuild   makes the new elements of a dense block from old ones and moves
 *
 * If the old weights are on the host, there is a launch of compare for each window of
 * them (base_windows.h).
 *
 * The list has room for a certain number of changes. Blocks that find no room are put
 * off: they are compared again afterwards, as many at a time as have room in any case. So
 * if more than that changes, the new weights must stay longer.
 */
#ifndef DW_CUDA_CUDA_ENCODE_H
#define DW_CUDA_CUDA_ENCODE_H

#include "codec/encode.h"
#include "cuda/cuda_context.h"

/* For tensors that stay where they are. It belongs to one thread at a time, and to the
 * handle's stream. One version:
 *
 *     begin, wait, finish, fetch (any number of times), end
 *
 * After a failure the next call may be begin or close. */
typedef struct dw_cuda_encoder dw_cuda_encoder;

typedef struct dw_cuda_encode_report {
    uint64_t n_put_off;      /* blocks of the last version that found no room */
    uint64_t n_dense;        /* of it, so far */
    uint64_t n_changed;      /* elements of it */
    uint64_t n_device_bytes; /* memory of the device that the encoder holds */
    uint64_t n_windows;      /* of the last version, if the old weights are on the host */
} dw_cuda_encode_report;

/* Takes memory and makes the tables. `data` of all tensors are addresses of the device,
 * aligned to the elements; digests are not used. N_ENTRIES is the room for changes; 0:
 * one for each 32 elements, and more after a version that did not fit. BASE_ON_HOST: the
 * old weights are in one allocation of pinned memory of the host. */
dw_status dw_cuda_encoder_open(dw_cuda_encoder **out, dw_cuda *c,
                               const dw_encode_pair *pairs, size_t n_pairs,
                               uint64_t n_entries, bool base_on_host, dw_error *err);
void dw_cuda_encoder_close(dw_cuda_encoder *e);

/* Puts choose and compare on the handle's stream, and returns. PAIRS: the same tensors,
 * the new ones perhaps at other addresses; NULL: the ones before. Let the stream wait for
 * what writes the new weights first. Neither this nor dw_cuda_encoder_wait allocates or
 * frees memory of the device, or waits for anything but the stream. */
dw_status dw_cuda_encoder_begin(dw_cuda_encoder *e, const dw_encode_pair *pairs,
                                dw_error *err);

/* Waits until the new weights are not needed any more, and does what was put off. */
dw_status dw_cuda_encoder_wait(dw_cuda_encoder *e, dw_error *err);

/* Encodes all blocks, and waits until the bytes are in pinned memory of the host. The old
 * weights must stay the same until the last fetch. */
dw_status dw_cuda_encoder_finish(dw_cuda_encoder *e, dw_error *err);

/* The results of some blocks, in any order. Pair P of the items is pair FIRST_PAIR + P of
 * the encoder; MAPS takes the maps of N_PAIRS pairs from there on. */
dw_status dw_cuda_encoder_fetch(dw_cuda_encoder *e, size_t first_pair, dw_class_map *maps,
                                size_t n_pairs, dw_encode_item *items, size_t n_items,
                                dw_error *err);

/* The results are not needed any more. If blocks were put off, takes more memory for the
 * next version, if there is any. */
void dw_cuda_encoder_end(dw_cuda_encoder *e);

dw_cuda_encode_report dw_cuda_encoder_report(const dw_cuda_encoder *e);

/* ---- all of it at once ---- */

typedef struct dw_cuda_encode_call {
    dw_cuda *cuda;
    uint64_t n_entries; /* as above */
    bool base_on_host;  /* likewise */
    dw_cuda_encode_report report;
} dw_cuda_encode_call;

/* The `run` of a dw_encode_device whose context is a dw_cuda_encode_call. The bytes are
 * those that the CPU writes. */
dw_status dw_cuda_encode(void *call, const dw_encode_job *job, dw_class_map *maps,
                         dw_encode_item *items, size_t n_items, dw_error *err);

#endif
