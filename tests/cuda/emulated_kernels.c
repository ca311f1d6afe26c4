#include "emulated_kernels.h"

#include "cuda/kernels.cu"

#define RUN(constant, name, threads, argument)                                           \
    static void run_##name(const void *a)                                                \
    {                                                                                    \
        name(*(const argument *)a);                                                      \
    }
DW_CUDA_EACH_KERNEL(RUN)

const emulated_kernel *emulated_kernel_find(const char *name)
{
#define ROW(constant, name, threads, argument) {#name, run_##name, sizeof(argument)},
    static const emulated_kernel kernels[] = {DW_CUDA_EACH_KERNEL(ROW)};
    for (size_t k = 0; k < DW_CUDA_KERNELS; k++)
        if (strcmp(kernels[k].name, name) == 0)
            return &kernels[k];
    return NULL;
}
