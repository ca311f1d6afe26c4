/* Compares a strip, lists its changes, and moves the base: the one pass over the weights.
 *
 * A block of 256 threads takes a strip of 1,024 cells: 4 rows of 256, one cell of each row
 * for each thread. Positions ascend with the row, the thread, and the place in the cell.
 * The rank of a change among the elements of its class is the sum of
 *
 *     rows[r][c]   elements of the class in the groups of 32 cells before its own
 *     cells[...]   in the cells of its group before its own: 16 counts of 4 bits each
 *     inner        in its cell before it
 */

#define ROWS   4u
#define GROUPS (DW_CUDA_CELLS / WARP)

typedef struct group_memory {
    uint64_t cells[DW_CUDA_CELLS];
    uint16_t rows[GROUPS][DW_CLASSES];
} group_memory;

typedef struct strip_memory {
    group_memory groups;
    uint32_t list[DW_CUDA_STRIP_ELEMS]; /* position | class << 13 | inner << 17 */
    uint64_t sums[8];                   /* changes of each warp, 16 bits a row */
    uint64_t halves[2];
    uint64_t first;
    uint32_t has_room;
} strip_memory;

/* Elements of class C in the strip before cell CELL. */
DW_DEVICE uint32_t rank_before(const group_memory *s, uint32_t cell, uint32_t c)
{
    uint32_t rank = s->rows[cell / WARP][c];
    for (uint32_t i = cell / WARP * WARP; i < cell; i++)
        rank += (uint32_t)(s->cells[i] >> 4 * c) & 15;
    return rank;
}

/* Counts the classes of a group of 32 cells; COUNTS are those of this lane's cell. */
DW_DEVICE void count_group(group_memory *s, uint32_t cell, uint64_t counts)
{
    uint32_t kept = 0;
    s->cells[cell] = counts;
    DW_UNROLL
    for (uint32_t i = 0; i < DW_CLASSES / 2; i++) {
        const uint32_t two = (uint32_t)(counts >> 8 * i);
        const uint32_t sum = __reduce_add_sync(LANES, (two & 15) | (two >> 4 & 15) << 16);
        kept = lane_of() == i ? sum : kept;
    }
    if (lane_of() < DW_CLASSES / 2) {
        s->rows[cell / WARP][2 * lane_of()] = (uint16_t)kept;
        s->rows[cell / WARP][2 * lane_of() + 1] = (uint16_t)(kept >> 16);
    }
}

/* Turns the counts of groups into counts of the groups before; TOTALS takes the sums.
 * Each of the 8 warps does two classes. */
DW_DEVICE void sum_groups(group_memory *s, uint16_t *totals)
{
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = threadIdx.x / WARP * 2 + i;
        const uint32_t own = s->rows[lane_of()][c];
        const uint32_t sum = scan32(own);
        s->rows[lane_of()][c] = (uint16_t)(sum - own);
        if (lane_of() == WARP - 1)
            totals[c] = (uint16_t)sum;
    }
}

#define WIDTH 1
#include "cuda/strip.cuh"
#undef WIDTH
#define WIDTH 2
#include "cuda/strip.cuh"
#undef WIDTH
#define WIDTH 4
#include "cuda/strip.cuh"
#undef WIDTH
#define WIDTH 8
#include "cuda/strip.cuh"
#undef WIDTH

DW_KERNEL(dw_cuda_compare, 256, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(strip_memory, s);
    switch (job.blocks[job.block_of[blockIdx.x]].width) {
    case 1:
        compare_strip_1(s, &job, blockIdx.x);
        break;
    case 2:
        compare_strip_2(s, &job, blockIdx.x);
        break;
    case 4:
        compare_strip_4(s, &job, blockIdx.x);
        break;
    default:
        compare_strip_8(s, &job, blockIdx.x);
    }
}

/* Gives the elements of blocks that were put off their old values back. */
DW_KERNEL(dw_cuda_restore, 256, dw_cuda_encode_job)
{
    const uint32_t block = job.block_of[blockIdx.x];
    const dw_cuda_block *b = &job.blocks[block];
    const dw_cuda_strip *strip = &job.strips[blockIdx.x];
    if (job.codes[block].state != DW_CUDA_PUT_OFF || strip->is_put_off)
        return;
    for (uint32_t i = threadIdx.x; i < strip->n_changes; i += blockDim.x) {
        const uint32_t at = job.places[strip->first + i] & (DW_BLOCK_ELEMS - 1);
        const uint64_t move = load_move(job.moves, strip->first + i, job.move_bytes);
        const uint64_t new_ = load_elem(b->old, at, b->width);
        /* the same move with the other sign leads back */
        store_elem(b->old, at, b->width,
                   dw_move_apply(new_, move ^ 1, 8u * b->width, b->is_float));
    }
}
