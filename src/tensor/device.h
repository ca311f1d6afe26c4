/* What the library asks of a device. src/cuda fills in the table; the layers below it
 * only see this header, so that they need nothing of CUDA.
 *
 * There is no current device. Each function may be called from any thread. Those that
 * copy, digest, encode or stage wait for their result, but for no other user of the
 * device.
 */
#ifndef DW_TENSOR_DEVICE_H
#define DW_TENSOR_DEVICE_H

#include "deltawire/tensor.h"

struct dw_class_map;
struct dw_encode_item;
struct dw_encode_job;
struct dw_stage_block;

/* Changes that a device decoded and keeps. */
typedef struct dw_device_stage dw_device_stage;

/* Two versions of the same tensors, compared again and again. */
typedef struct dw_device_capture dw_device_capture;

/* Stores of single elements that a device keeps. They are in parts; the stores of a part
 * are in one tensor. */
typedef struct dw_device_stores dw_device_stores;

typedef struct dw_stores_part {
    void *data;      /* places are counted from here, below 2^31 */
    uint64_t first;  /* place of the list */
    uint64_t values; /* byte of the first one in the lists of values, a multiple of 8 */
    uint32_t n;
    uint32_t width;  /* bytes of an element */
    uint32_t tensor; /* the caller's number */
} dw_stores_part;

typedef struct dw_stores_counts {
    uint64_t n_parts, n_stores, n_value_bytes;
} dw_stores_counts;

typedef struct dw_stores_lists {
    dw_stores_counts counts;
    const dw_stores_part *parts;
    const uint32_t *places;
    const void *old_values, *values;
} dw_stores_lists;

typedef struct dw_device_ops {
    void (*close)(dw_device *device);

    /* Memory of the device. WHAT it is for is part of the error. *OUT is NULL after a
     * failure, and for 0 bytes. */
    dw_status (*alloc)(void **out, dw_device *device, uint64_t n_bytes, const char *what,
                       dw_error *err);
    void (*free)(dw_device *device, void *pointer);

    /* Memory of the host that the device reads by itself, and copies without the CPU. */
    dw_status (*pin)(void **out, dw_device *device, uint64_t n_bytes, const char *what,
                     dw_error *err);
    void (*unpin)(dw_device *device, void *pointer);

    /* Copies from the device, to it, and inside it. The host's side is plain memory. */
    dw_status (*read)(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                      dw_error *err);
    dw_status (*write)(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                       dw_error *err);
    dw_status (*copy)(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                      dw_error *err);

    /* As dw_digest_tensors. All tensors are on the device. */
    dw_status (*digest)(dw_device *device, dw_digest *out, const dw_tensor *tensors,
                        size_t n_tensors, dw_error *err);

    /* As `run` of a dw_encode_device (codec/encode.h). All pairs are on the device. */
    dw_status (*encode)(dw_device *device, const struct dw_encode_job *job,
                        struct dw_class_map *maps, struct dw_encode_item *items,
                        size_t n_items, dw_error *err);

    /* Decoding (codec/stage.h): new, decode. The BLOCKS of decode are those on the
     * device; TENSORS must be there until then. The device keeps the changes until free,
     * which accepts NULL.
     *
     * Storing them (codec/kept.h): `store` starts it; each weight is compared with the
     * old value and the new one, and read back. `wait` waits, and sets *N_WRONG to the
     * number of weights that held neither, or did not take the new one, and *TENSOR to
     * that of one of them. `undo` puts the old values back, except where neither was
     * found, and waits. All three may be called again. */
    dw_status (*stage_new)(dw_device_stage **out, dw_device *device,
                           const dw_tensor *tensors, dw_error *err);
    dw_status (*stage_decode)(dw_device_stage *stage, struct dw_stage_block *blocks,
                              size_t n_blocks, dw_error *err);
    dw_status (*stage_store)(dw_device_stage *stage, dw_error *err);
    dw_status (*stage_wait)(dw_device_stage *stage, uint64_t *n_wrong, size_t *tensor,
                            dw_error *err);
    dw_status (*stage_undo)(dw_device_stage *stage, dw_error *err);
    void (*stage_free)(dw_device_stage *stage);

    /* Capturing a version: hold, wait, encode, fetch (any number of times), end. BASE and
     * NEXT stay where they are until close, which accepts NULL. BASE is on the device, or
     * all of it in one piece of memory from `pin`.
     *
     * `hold` starts the comparison after what STREAM, a stream of the device's or NULL
     * for its default one, was given to do so far; what it is given from then on comes
     * after it, on the device. If much changed lately, or if IS_CAREFUL, `hold` waits
     * until NEXT is not needed any more. `wait` does so otherwise: DW_UNAVAILABLE if too
     * much changed for a hold that did not wait. After a failure the next call may be
     * hold or close.
     *
     * `fetch` fills the results of blocks of tensor number T (codec/encode.h), and its
     * map. BASE must stay the same until the last one. */
    dw_status (*capture_open)(dw_device_capture **out, dw_device *device,
                              const dw_tensor *base, const dw_tensor *next,
                              size_t n_tensors, dw_error *err);
    void (*capture_close)(dw_device_capture *capture);
    dw_status (*capture_hold)(dw_device_capture *capture, void *stream, bool is_careful,
                              dw_error *err);
    dw_status (*capture_wait)(dw_device_capture *capture, dw_error *err);
    dw_status (*capture_encode)(dw_device_capture *capture, dw_error *err);
    dw_status (*capture_fetch)(dw_device_capture *capture, size_t t,
                               struct dw_class_map *map, struct dw_encode_item *items,
                               size_t n_items, dw_error *err);
    void (*capture_end)(dw_device_capture *capture);

    /* Stores: new, with room for COUNTS in all; add copies lists to the device, as often
     * as needed; apply is one launch. It stores each value if the old one is there, and
     * reads it back. *N_WRONG takes the number of elements that had another value or did
     * not take the new one, and *TENSOR the tensor of one of them. Undo restores what
     * apply has stored, also after a failure of apply. Apply at most once. Free accepts
     * NULL. */
    dw_status (*stores_new)(dw_device_stores **out, dw_device *device,
                            const dw_stores_counts *counts, dw_error *err);
    dw_status (*stores_add)(dw_device_stores *stores, const dw_stores_lists *lists,
                            dw_error *err);
    dw_status (*stores_apply)(dw_device_stores *stores, uint64_t *n_wrong, size_t *tensor,
                              dw_error *err);
    dw_status (*stores_undo)(dw_device_stores *stores, dw_error *err);
    void (*stores_free)(dw_device_stores *stores);
} dw_device_ops;

struct dw_device {
    const dw_device_ops *ops;
    char name[32];
};

/* Whether a tensor of the list is on a device. */
bool dw_tensors_on_device(const dw_tensor *tensors, size_t n);

/* DW_UNSUPPORTED if a tensor is on a device. DOING says what cannot be done with it:
 * "write a checkpoint". */
dw_status dw_tensors_need_host(const dw_tensor *tensors, size_t n, const char *doing,
                               dw_error *err);

/* The devices of a list, each once. */
typedef struct dw_device_list {
    dw_device **items; /* dw_free */
    size_t n;
    bool has_host; /* some tensors are on none */
} dw_device_list;

dw_status dw_devices_of(dw_device_list *out, const dw_tensor *tensors, size_t n,
                        dw_error *err);
void dw_device_list_release(dw_device_list *list);

/* Where bytes are; DEVICE is NULL for the host, whose bytes may be in a mapped file
 * (base/map.h). */
typedef struct dw_place {
    dw_device *device;
    void *data;
} dw_place;

/* Copies between any two places. */
dw_status dw_place_copy(dw_place to, dw_place from, uint64_t n_bytes, dw_error *err);
/* Rounds F32 to BF16 as dw_cast_bf16 does. */
dw_status dw_place_round(dw_place to, dw_place from, uint64_t n_elems, dw_error *err);

#endif
