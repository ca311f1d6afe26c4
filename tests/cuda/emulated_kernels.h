/* The kernels of src/cuda, as functions of the CPU. */
#ifndef EMULATED_KERNELS_H
#define EMULATED_KERNELS_H

#include <stddef.h>

#include "emulate.h"

typedef struct emulated_kernel {
    const char *name;
    void (*run)(const void *argument);
    size_t argument_bytes;
} emulated_kernel;

/* NULL if there is none of that name. */
const emulated_kernel *emulated_kernel_find(const char *name);

#endif
