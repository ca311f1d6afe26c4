/* Cells and the classes of their elements. WIDTH is a constant wherever these are called.
 */

#define CELL_ROWS   (DW_CUDA_CELLS / 256) /* cells of a thread */
#define CELL_GROUPS (DW_CUDA_CELLS / WARP)

/* A class map as cells use it. */
typedef struct cell_map {
    dw_class_map map;
    uint32_t shift, mask; /* of two elements of 2 bytes: 4 times the exponent of each */
    uint32_t minus;       /* -4 times the base, twice */
} cell_map;

DW_DEVICE cell_map cell_map_of(const dw_class_map *map)
{
    cell_map m;
    m.map = *map;
    m.shift = map->shift >= 2 ? map->shift - 2 : 0;
    m.mask = (uint32_t)(map->magnitude >> map->shift << 2 & 0xffff) * 0x10001u;
    m.minus = ((0u - 4 * min32(map->base, 8191)) & 0xffff) * 0x10001u;
    return m;
}

/* How many elements of a strip of N are in a cell. */
DW_DEVICE uint32_t cell_valid(uint32_t n, uint32_t cell, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    return n > cell * elems ? min32(elems, n - cell * elems) : 0;
}

/* Loads a cell of a strip. Elements that are not valid become 0. */
DW_DEVICE void cell_load(uint32_t w[4], const uint8_t *strip, uint32_t cell,
                         uint32_t valid, bool is_aligned, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    const uint8_t *at = strip + (size_t)cell * (elems * width);
    w[0] = w[1] = w[2] = w[3] = 0;
    if (valid == elems && is_aligned) {
        if (width == 1) {
            const uint64_t v = *(const uint64_t *)at;
            w[0] = (uint32_t)v;
            w[1] = (uint32_t)(v >> 32);
        } else {
            const uint4 v = *(const uint4 *)at;
            w[0] = v.x;
            w[1] = v.y;
            w[2] = v.z;
            w[3] = v.w;
        }
        return;
    }
    DW_UNROLL
    for (uint32_t e = 0; e < elems; e++) {
        const uint64_t v = e < valid ? load_elem(at, e, width) : 0;
        if (width == 8)
            w[2 * e + 1] = (uint32_t)(v >> 32);
        w[e * width / 4] |= (uint32_t)v << 8 * (e * width % 4);
    }
}

DW_DEVICE uint64_t cell_elem(const uint32_t w[4], uint32_t e, unsigned width)
{
    if (width == 8)
        return w[2 * e] | (uint64_t)w[2 * e + 1] << 32;
    if (width == 4)
        return w[e];
    return w[e * width / 4] >> 8 * width * (e % (4 / width)) & ((1u << 8 * width) - 1);
}

/* As dw_class_of, in 32 bits if that is enough. */
DW_DEVICE uint32_t cell_class(uint64_t x, const dw_class_map *map, unsigned width)
{
    if (width == 8)
        return dw_class_of(x, map);
    uint32_t c = ((uint32_t)x & (uint32_t)map->magnitude) >> map->shift;
    c = c > map->base ? c - map->base : 0;
    return min32(c, DW_CLASSES - 1);
}

/* Counts of a cell's classes, 4 bits each. */
DW_DEVICE uint64_t cell_count(const uint32_t w[4], uint32_t valid, const cell_map *m,
                              unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    uint64_t counts = 0;
    if (width == 2 && valid == elems) {
        DW_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t two = __viaddmin_s16x2_relu(w[i] >> m->shift & m->mask,
                                                       m->minus, 60 * 0x10001u);
            counts += 1ull << (two & 63);
            counts += 1ull << (two >> 16);
        }
        return counts;
    }
    DW_UNROLL
    for (uint32_t e = 0; e < elems; e++)
        counts += (uint64_t)(e < valid)
                  << 4 * cell_class(cell_elem(w, e, width), &m->map, width);
    return counts;
}

/* Counts of groups of cells stand in 8 words, of two classes each: word_of(C), in the low
 * half or in the high one. */
#define CELL_WORDS 8u

DW_DEVICE uint32_t word_of_class(uint32_t c)
{
    return c / 8 * 4 + c % 4;
}

DW_DEVICE uint32_t shift_of_class(uint32_t c)
{
    return c / 4 % 2 * 16;
}
