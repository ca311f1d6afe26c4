#include "kernel/kernel.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/deltawire.h"

static bool machine_has(const dw_kernels *k)
{
#if defined(__x86_64__)
    if (k == &dw_kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
               __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (k == &dw_kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vpopcntdq") &&
               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
               __builtin_cpu_supports("popcnt");
#endif
    (void)k;
    return true;
}

/* Best first. */
static const dw_kernels *const tables[] = {
#if defined(__x86_64__)
    &dw_kernels_avx512,
    &dw_kernels_avx2,
#elif defined(__aarch64__)
    &dw_kernels_neon,
#endif
    &dw_kernels_plain,
};

enum { N_TABLES = sizeof tables / sizeof tables[0] };

const dw_kernels *dw_kernels_find(const char *name)
{
    for (size_t i = 0; i < N_TABLES; i++)
        if (strcmp(tables[i]->name, name) == 0)
            return machine_has(tables[i]) ? tables[i] : NULL;
    return NULL;
}

static const dw_kernels *choose(void)
{
    const char *wish = getenv("DELTAWIRE_KERNEL");
    const dw_kernels *named = wish ? dw_kernels_find(wish) : NULL;
    for (size_t i = 0; !named && i < N_TABLES; i++)
        if (machine_has(tables[i]))
            named = tables[i];
    return named;
}

const dw_kernels *dw_kernels_get(void)
{
    /* two threads may both choose: the result is the same */
    static _Atomic(const dw_kernels *) chosen;
    const dw_kernels *k = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!k) {
        k = choose();
        atomic_store_explicit(&chosen, k, memory_order_release);
    }
    return k;
}

const char *dw_kernel_name(void)
{
    return dw_kernels_get()->name;
}
