/* What the threads of a warp do together. All 32 of them call these functions. */

#define WARP  32u
#define LANES 0xffffffffu

DW_DEVICE uint32_t lane_of(void)
{
    return threadIdx.x % WARP;
}

/* The sum of the values of this lane and those before it. */
DW_DEVICE uint32_t scan32(uint32_t v)
{
    for (unsigned by = 1; by < WARP; by *= 2) {
        const uint32_t before = __shfl_up_sync(LANES, v, by);
        v += lane_of() >= by ? before : 0;
    }
    return v;
}

DW_DEVICE uint64_t scan64(uint64_t v)
{
    for (unsigned by = 1; by < WARP; by *= 2) {
        const uint64_t before = __shfl_up_sync(LANES, v, by);
        v += lane_of() >= by ? before : 0;
    }
    return v;
}

/* The sum of all. */
DW_DEVICE uint64_t sum64(uint64_t v)
{
    for (unsigned by = WARP / 2; by > 0; by /= 2)
        v += __shfl_xor_sync(LANES, v, by);
    return v;
}

DW_DEVICE uint32_t min32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

DW_DEVICE uint64_t add64(uint64_t *to, uint64_t v)
{
    return atomicAdd((unsigned long long *)to, (unsigned long long)v);
}

/* Adds a sum below the prime to two halves, which take any number of them. */
DW_DEVICE void add_halves(uint64_t halves[2], uint64_t sum)
{
    add64(&halves[0], sum & 0xffffffffu);
    add64(&halves[1], sum >> 32);
}

/* The sum of all, modulo the prime of digests. */
DW_DEVICE uint64_t sum_digests(uint64_t v)
{
    const uint32_t third = (1u << 21) - 1;
    const uint64_t low = __reduce_add_sync(LANES, (uint32_t)v & third);
    const uint64_t middle = __reduce_add_sync(LANES, (uint32_t)(v >> 21) & third);
    const uint64_t high = __reduce_add_sync(LANES, (uint32_t)(v >> 42));
    return dw_digest_reduce(((unsigned __int128)high << 42) + (middle << 21) + low);
}

DW_DEVICE uint64_t join_halves(const uint64_t halves[2])
{
    return dw_digest_reduce(((unsigned __int128)halves[1] << 32) + halves[0]);
}

/* Moves take 4 bytes, or 8. */
DW_DEVICE uint64_t load_move(const uint8_t *moves, uint64_t i, uint32_t move_bytes)
{
    return move_bytes == 8 ? ((const uint64_t *)moves)[i] : ((const uint32_t *)moves)[i];
}

DW_DEVICE void store_move(uint8_t *moves, uint64_t i, uint32_t move_bytes, uint64_t v)
{
    if (move_bytes == 8)
        ((uint64_t *)moves)[i] = v;
    else
        ((uint32_t *)moves)[i] = (uint32_t)v;
}

/* Elements are aligned to their width. */
DW_DEVICE uint64_t load_elem(const void *data, uint64_t i, unsigned width)
{
    return width == 1   ? ((const uint8_t *)data)[i]
           : width == 2 ? ((const uint16_t *)data)[i]
           : width == 4 ? ((const uint32_t *)data)[i]
                        : ((const uint64_t *)data)[i];
}

DW_DEVICE void store_elem(void *data, uint64_t i, unsigned width, uint64_t v)
{
    if (width == 1)
        ((uint8_t *)data)[i] = (uint8_t)v;
    else if (width == 2)
        ((uint16_t *)data)[i] = (uint16_t)v;
    else if (width == 4)
        ((uint32_t *)data)[i] = (uint32_t)v;
    else
        ((uint64_t *)data)[i] = v;
}

/* The same from memory, not from a register. */
DW_DEVICE uint64_t load_again(const void *data, uint64_t i, unsigned width)
{
    return width == 1   ? ((const volatile uint8_t *)data)[i]
           : width == 2 ? ((const volatile uint16_t *)data)[i]
           : width == 4 ? ((const volatile uint32_t *)data)[i]
                        : ((const volatile uint64_t *)data)[i];
}
