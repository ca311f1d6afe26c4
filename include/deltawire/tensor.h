/* Element types and tensors.
 *
 * A tensor is a name, an element type, a shape and a borrowed pointer to its bytes:
 * row-major, little-endian, without padding. The library never frees or moves the bytes.
 * Each function says if it writes them.
 */
#ifndef DELTAWIRE_TENSOR_H
#define DELTAWIRE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The element types of safetensors. The numbers are part of the delta format
 * (docs/FORMAT.md) and never change. */
typedef enum dw_dtype {
    DW_BOOL = 0,
    DW_U8 = 1,
    DW_I8 = 2,
    DW_U16 = 3,
    DW_I16 = 4,
    DW_U32 = 5,
    DW_I32 = 6,
    DW_U64 = 7,
    DW_I64 = 8,
    DW_F16 = 9,
    DW_BF16 = 10,
    DW_F32 = 11,
    DW_F64 = 12,
    DW_F8_E4M3 = 13,
    DW_F8_E5M2 = 14,
    DW_F8_E8M0 = 15,
    DW_F8_E4M3FNUZ = 16,
    DW_F8_E5M2FNUZ = 17,
    DW_F6_E2M3 = 18, /* sub-byte types are packed; deltas treat them as bytes */
    DW_F6_E3M2 = 19,
    DW_F4 = 20,
    DW_C64 = 21, /* two F32 each; deltas treat it as twice as many F32 */
    DW_DTYPE_COUNT
} dw_dtype;

/* The safetensors spelling ("BF16"), or "?" if DTYPE is no type. */
DW_API const char *dw_dtype_name(dw_dtype dtype);

/* Finds a type by its safetensors spelling. */
DW_API bool dw_dtype_from_name(dw_dtype *out, const char *name);

/* Bits an element takes: 4 to 64. */
DW_API unsigned dw_dtype_bits(dw_dtype dtype);

#define DW_MAX_DIMS 64

typedef struct dw_device dw_device;

typedef struct dw_tensor {
    const char *name; /* UTF-8, borrowed */
    dw_dtype dtype;
    uint32_t n_dims;      /* 0 for a scalar */
    const uint64_t *dims; /* [n_dims], borrowed */
    uint64_t n_bytes;     /* elements x bits / 8 */
    void *data;           /* [n_bytes], borrowed; may be NULL when n_bytes is 0 */
    uint64_t first_byte;  /* of a slice: its offset in the whole tensor, in bytes; 0
                             for a whole one. The digest of a slice is its share of
                             the tensor's */
    dw_device *device;    /* where `data` is; NULL: in the memory of the host */
} dw_tensor;

/* Computes the number of elements and bytes of a shape. Returns false if a product passes
 * 2^64, if there are more than DW_MAX_DIMS dimensions, or if the bits do not fill whole
 * bytes. Either output may be NULL. */
DW_API bool dw_shape_size(dw_dtype dtype, uint32_t n_dims, const uint64_t *dims,
                          uint64_t *n_elems, uint64_t *n_bytes);

/* Rounds F32 to BF16 as PyTorch does: to the nearest value, and halfway to the even one.
 * Every NaN becomes 0x7fc0. */
DW_API void dw_cast_bf16(uint16_t *out, const float *in, uint64_t n_elems);

/* Copies the tensors of FROM into the tensors of INTO that have the same names and
 * shapes. The order may differ. F32 is rounded if INTO has BF16; other types must be the
 * same. Checks everything before it writes anything. */
DW_API dw_status dw_cast_tensors(const dw_tensor *into, const dw_tensor *from,
                                 size_t n_tensors, unsigned n_threads, dw_error *err);

/* ---- digests ---- */

/* Digests: a 61-bit number for a tensor, and one for a whole model.
 *
 * The digest is linear: digest(new) - digest(old) depends only on the changed elements,
 * so an update costs as much as the change, not as much as the model. It misses a fault
 * of memory, disk or software with a probability near 2^-60. It is no defence against
 * somebody who chooses the weights: use signatures for that. docs/FORMAT.md defines it.
 */

typedef uint64_t dw_digest; /* 0 .. 2^61 - 2 */

/* The digest of a tensor with these bytes. One pass, one thread. */
DW_API dw_digest dw_digest_bytes(const void *bytes, uint64_t n_bytes);

/* Computes the digests of tensors, or the shares of slices. OUT takes n_tensors values.
 * STATE takes the digest of the whole model, which covers names, types and shapes too; it
 * may be NULL. */
DW_API dw_status dw_digest_tensors(dw_digest *out, dw_digest *state,
                                   const dw_tensor *tensors, size_t n_tensors,
                                   unsigned n_threads, const dw_progress *progress,
                                   dw_error *err);

/* The model's digest, from the digests of its tensors in any order. For callers that keep
 * the digests of tensors. */
DW_API dw_digest dw_digest_state(const dw_tensor *tensors, const dw_digest *digests,
                                 size_t n_tensors);

/* ---- devices ---- */

/* Devices that hold weights in memory of their own.
 *
 * A tensor whose `device` is set has its bytes there: `data` is an address of the device,
 * aligned to its elements. The library compares, encodes, decodes and stores such weights
 * on the device. The tensors of one list may be on several devices and in the memory of
 * the host. A function that cannot use tensors of a device returns
 * DW_UNSUPPORTED and changes nothing.
 *
 * Several threads may use a handle at once. */

/* Opens the device of that NAME: "cuda:0" is the first one of Nvidia's, in the driver's
 * order. DW_NOT_FOUND if there is no such device or no driver, DW_UNSUPPORTED if this
 * build has no kernels for it. */
DW_API dw_status dw_device_open(dw_device **out, const char *name, dw_error *err);

/* Close everything that uses it first. */
DW_API void dw_device_close(dw_device *device);

/* The name that it was opened with. */
DW_API const char *dw_device_name(const dw_device *device);

#ifdef __cplusplus
}
#endif

#endif
