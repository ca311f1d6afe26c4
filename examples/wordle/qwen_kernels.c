/* The plain set, and the choice among the sets. */
#define KERNELS      qwen_kernels_plain
#define KERNELS_NAME "plain"
#include "qwen_kernels.inc"

#include <stdatomic.h>
#include <stdlib.h>

#ifdef __x86_64__
extern const qwen_kernels qwen_kernels_avx2, qwen_kernels_avx512;

static const qwen_kernels *best(const char *wanted)
{
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    bool any = wanted == NULL;
    if (has_avx512 && (any || strcmp(wanted, "avx512") == 0))
        return &qwen_kernels_avx512;
    if (has_avx2 && (any || strcmp(wanted, "avx2") == 0))
        return &qwen_kernels_avx2;
    return &qwen_kernels_plain;
}
#else
static const qwen_kernels *best(const char *wanted)
{
    (void)wanted;
    return &qwen_kernels_plain;
}
#endif

const qwen_kernels *qwen_kernels_get(void)
{
    static _Atomic(const qwen_kernels *) chosen; /* threads that race choose the same */
    const qwen_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (k == NULL) {
        k = best(getenv("QWEN_KERNELS"));
        atomic_store_explicit(&chosen, k, memory_order_relaxed);
    }
    return k;
}
