/* The parts of DLPack's binary interface 1.0 (https://dmlc.github.io/dlpack) that are
 * used here: CPU tensors, with and without a version. */
#ifndef DWPY_DLPACK_H
#define DWPY_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_READ_ONLY = 1 };
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_F8_E4M3FN = 10,
    DL_F8_E4M3FNUZ = 11,
    DL_F8_E5M2 = 12,
    DL_F8_E5M2FNUZ = 13,
    DL_F8_E8M0FNU = 14,
};

typedef struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t n_dims;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_managed_versioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

#define DL_NAME                "dltensor"
#define DL_USED_NAME           "used_dltensor"
#define DL_VERSIONED_NAME      "dltensor_versioned"
#define DL_USED_VERSIONED_NAME "used_dltensor_versioned"

#endif
