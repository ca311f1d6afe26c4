/* For tests: lets the library use the fake driver, and gives access to it. */
#ifndef TESTS_CUDA_FAKE_H
#define TESTS_CUDA_FAKE_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_image.h"

/* As in fake_cuda.h. */
static struct {
    void (*fail_at)(int64_t at, int result, int lost);
    int64_t (*calls)(void);
    int64_t (*held)(void);
    uint64_t (*peak)(void);
    void (*seed)(uint64_t seed);
    void (*eager)(int is_eager);
} fake;

static const dw_cuda_image fake_image = {"", "emulated"};

/* A setup function of cmocka. FAKE_CUDA is the path of the library. */
static int fake_open(void **state)
{
    (void)state;
    static const char *const names[] = {"fake_cuda_fail", "fake_cuda_calls",
                                        "fake_cuda_held", "fake_cuda_peak",
                                        "emulate_seed",   "fake_cuda_eager"};
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (!library || setenv("DELTAWIRE_CUDA_DRIVER", FAKE_CUDA, 1) != 0)
        return -1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(library, names[i]);
        if (!found)
            return -1;
        memcpy((char *)&fake + i * sizeof found, &found, sizeof found);
    }
    return 0;
}

#endif
