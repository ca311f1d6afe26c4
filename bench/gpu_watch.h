/* Looks over the library's shoulder: its memory, and the time of its kernels. The driver
 * of a handle is replaced by one that counts. For one handle at a time.
 */
#ifndef DW_BENCH_GPU_WATCH_H
#define DW_BENCH_GPU_WATCH_H

#include "cuda/cuda_context.h"

typedef struct gpu_kernel_time {
    unsigned n_launches;
    double ms; /* negative: the driver has no clock */
} gpu_kernel_time;

void gpu_watch_start(dw_cuda *c);
void gpu_watch_stop(void); /* before the handle is closed */

/* Memory in use now, and the most since gpu_watch_reset; counted from gpu_watch_start. */
typedef struct gpu_memory {
    int64_t pinned, pinned_peak;
    int64_t device, device_peak;
} gpu_memory;
gpu_memory gpu_watch_memory(void);
void gpu_watch_reset(void);

/* Measures kernels from now on. Between dw_cuda_enter and dw_cuda_leave. */
void gpu_watch_kernels(void);
/* The sums since then; the device must be idle. Between enter and leave. */
void gpu_watch_times(gpu_kernel_time out[DW_CUDA_KERNELS]);

#endif
