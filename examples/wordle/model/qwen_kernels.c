/* The plain set, and the choice among the sets. */
#define KERNELS      qwen_kernels_plain
#define KERNELS_NAME "plain"
#include "qwen_kernels.inc"

#include <stdatomic.h>
#include <stdlib.h>

#ifdef __x86_64__
extern const qwen_kernels qwen_kernels_avx2, qwen_kernels_avx512;

static const qwen_kernels *find_vectors(const char *name)
{
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    if (has_avx512 && strcmp(name, "avx512") == 0)
        return &qwen_kernels_avx512;
    if (has_avx2 && strcmp(name, "avx2") == 0)
        return &qwen_kernels_avx2;
    return NULL;
}
#else
static const qwen_kernels *find_vectors(const char *name)
{
    (void)name;
    return NULL;
}
#endif

const qwen_kernels *qwen_kernels_find(const char *name)
{
    return strcmp(name, "plain") == 0 ? &qwen_kernels_plain : find_vectors(name);
}

static const qwen_kernels *best(void)
{
    const char *wanted = getenv("QWEN_KERNELS");
    const char *const names[] = {wanted == NULL ? "" : wanted, "avx512", "avx2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const qwen_kernels *k = qwen_kernels_find(names[i]);
        if (k != NULL)
            return k;
    }
    return &qwen_kernels_plain;
}

const qwen_kernels *qwen_kernels_get(void)
{
    static _Atomic(const qwen_kernels *) chosen; /* threads that race choose the same */
    const qwen_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (k == NULL) {
        k = best();
        atomic_store_explicit(&chosen, k, memory_order_relaxed);
    }
    return k;
}
