#include "codec/ans.h"

#include <pthread.h>

/* 2^32 times the probability that a run continues for one more bucket: 2^(32 - h) with h
 * = 8 * 2^(-t/4), rounded. */
static const uint32_t stay_of[DW_ANS_TABLES] = {
    16777216,   40539604,   85128906,   158858995,  268435456,  417272424,
    604670047,  826011010,  1073741824, 1338720065, 1611532835, 1883531330,
    2147483648, 2397865488, 2630870735, 2844240754, 3037000500, 3209167158,
    3361473452, 3495128183, 3611622603, 3712582389, 3799660319, 3874462704,
};

static dw_ans_table tables[DW_ANS_TABLES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* -log2(size / 4096) in 1/256 bit. Computes one bit at a time by squaring. */
static uint16_t cost_of(uint32_t size)
{
    unsigned whole = 31 - (unsigned)__builtin_clz(size);
    uint64_t x = (uint64_t)size << (31 - whole); /* 1.0 is 2^31 */
    uint32_t log2 = whole << 8;
    for (unsigned bit = 128; bit > 0; bit >>= 1) {
        x = x * x >> 31;
        if (x >> 32) {
            x >>= 1;
            log2 |= bit;
        }
    }
    return (uint16_t)((DW_ANS_BITS << 8) - log2);
}

static void build_table(dw_ans_table *table, uint32_t stay)
{
    uint64_t survive = 1ull << 32; /* probability of reaching bucket s, times 2^32 */
    uint32_t start = 0;
    for (uint32_t s = 0; s < DW_ANS_SYMBOLS; s++) {
        survive = survive * stay >> 32;
        uint32_t end = DW_ANS_TOTAL - (uint32_t)(survive >> (32 - DW_ANS_BITS));
        uint32_t latest = DW_ANS_TOTAL - (DW_ANS_SYMBOLS - 1 - s);
        /* every symbol has at least one slot, and the last takes the rest */
        if (end > latest || s == DW_ANS_FAR)
            end = latest;
        if (end <= start)
            end = start + 1;
        uint32_t size = end - start;
        table->symbol[s] =
            (dw_ans_symbol){(uint16_t)start, (uint16_t)size, (1ull << 44) / size + 1};
        table->cost[s] = cost_of(size);
        for (uint32_t place = 0; place < size; place++)
            table->slot[start + place] = s | size << 5 | place << 18;
        start = end;
    }
}

static void build_tables(void)
{
    for (unsigned t = 0; t < DW_ANS_TABLES; t++)
        build_table(&tables[t], stay_of[t]);
}

const dw_ans_table *dw_ans_tables(void)
{
    pthread_once(&once, build_tables);
    return tables;
}

const uint32_t *dw_ans_stays(void)
{
    return stay_of;
}
