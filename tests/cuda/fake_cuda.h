/* What tests can ask of the fake driver, besides what a driver does. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

/* Lets call number AT from now on, counted from 0, and with LOST all after it, return
 * RESULT. AT < 0: none. Counting starts anew. */
void fake_cuda_fail(int64_t at, int result, int lost);

/* Calls so far that can fail. */
int64_t fake_cuda_calls(void);

/* What was made and not released: memory, contexts, modules, streams, events, and pushes
 * without a pop. */
int64_t fake_cuda_held(void);

/* Whether a stream copies as soon as it can, while kernels still run as late as they can.
 */
void fake_cuda_eager(int is_eager);

/* The most bytes of device memory since the last fake_cuda_fail. */
uint64_t fake_cuda_peak(void);

#endif
