#include "qwen_matmul.h"

/* A task makes a block of C of MAX_ROWS x MAX_COLS, MAX_SUM terms at a time: it packs the
 * part of B that it needs, panel by panel, into its thread's scratch (fp32, 256 KiB: half
 * of a second-level cache), then goes down the rows of A. Blocks do not depend on the
 * number of threads, so neither do results. */
enum { MAX_ROWS = 480, MAX_COLS = 256, MAX_SUM = 256 };

/* Up to so many rows, packing B costs more than it saves. */
enum { FEW_ROWS = 4, MIN_COLS_A_TASK = 16 };

typedef struct product {
    const qwen_kernels *k;
    float *c;
    qwen_matrix a, b;
    size_t n_rows, n_cols, n_sum;
    bool add;
    size_t n_blocks_wide;
    size_t rows_a_block;
    size_t cols_a_block;
} product;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t qwen_matmul_scratch_bytes(void)
{
    return sizeof(float) * MAX_COLS * MAX_SUM;
}

static void pack(const product *t, float *out, size_t sum0, size_t n_sum, size_t col0,
                 size_t n_cols)
{
    size_t first = sum0 * t->b.row + col0 * t->b.col;
    if (t->b.bf16)
        t->k->pack_bf16(out, (const uint16_t *)t->b.data + first, t->b.row, t->b.col,
                        n_sum, n_cols);
    else
        t->k->pack_f32(out, (const float *)t->b.data + first, t->b.row, t->b.col, n_sum,
                       n_cols);
}

static void make_block(void *context, size_t task, void *scratch)
{
    const product *t = context;
    size_t step = t->k->tile_rows, wide = t->k->tile_cols;
    size_t row0 = task / t->n_blocks_wide * t->rows_a_block;
    size_t col0 = task % t->n_blocks_wide * t->cols_a_block;
    size_t row1 = least(row0 + t->rows_a_block, t->n_rows);
    size_t col1 = least(col0 + t->cols_a_block, t->n_cols);
    for (size_t sum0 = 0; sum0 < t->n_sum; sum0 += MAX_SUM) {
        size_t n_sum = least(MAX_SUM, t->n_sum - sum0);
        bool add = t->add || sum0 > 0;
        for (size_t c = col0; c < col1; c += wide)
            pack(t, (float *)scratch + (c - col0) * n_sum, sum0, n_sum, c,
                 least(wide, col1 - c));
        for (size_t r = row0; r < row1; r += step)
            for (size_t c = col0; c < col1; c += wide)
                t->k->tile(t->c + r * t->n_cols + c, t->n_cols, least(step, row1 - r),
                           least(wide, col1 - c), n_sum,
                           (const float *)t->a.data + r * t->a.row + sum0 * t->a.col,
                           t->a.row, t->a.col,
                           (const float *)scratch + (c - col0) * n_sum, add);
    }
}

void qwen_matmul(qwen_pool *pool, float *c, qwen_matrix a, qwen_matrix b, size_t n_rows,
                 size_t n_cols, size_t n_sum, bool add)
{
    product t = {.k = qwen_kernels_get(),
                 .c = c,
                 .a = a,
                 .b = b,
                 .n_rows = n_rows,
                 .n_cols = n_cols,
                 .n_sum = n_sum,
                 .add = add,
                 .rows_a_block = MAX_ROWS,
                 .cols_a_block = n_rows > MAX_ROWS ? MAX_COLS : MAX_COLS / 4};
    t.n_blocks_wide = (n_cols + t.cols_a_block - 1) / t.cols_a_block;
    size_t n_blocks_high = (n_rows + t.rows_a_block - 1) / t.rows_a_block;
    qwen_pool_run(pool, t.n_blocks_wide * n_blocks_high,
                  2.0 * (double)n_rows * (double)n_cols * (double)n_sum, make_block, &t);
}

/* Few rows: each row of W is read once, in place. */
static void make_columns(void *context, size_t task, void *scratch)
{
    (void)scratch;
    const product *t = context;
    const float *x = t->a.data;
    const uint16_t *w = t->b.data;
    size_t col1 = least((task + 1) * t->cols_a_block, t->n_cols);
    for (size_t c = task * t->cols_a_block; c < col1; c++)
        for (size_t r = 0; r < t->n_rows; r++) {
            float y = t->k->dot_bf16(x + r * t->n_sum, w + c * t->n_sum, t->n_sum);
            float *out = t->c + r * t->n_cols + c;
            *out = t->add ? *out + y : y;
        }
}

void qwen_linear(qwen_pool *pool, float *y, const float *x, const uint16_t *w,
                 size_t n_rows, size_t n_out, size_t n_in, bool add)
{
    if (n_rows > FEW_ROWS) {
        qwen_matmul(pool, y, qwen_rows(x, n_in), qwen_transposed(qwen_rows_bf16(w, n_in)),
                    n_rows, n_out, n_in, add);
        return;
    }
    product t = {.k = qwen_kernels_get(),
                 .c = y,
                 .a = qwen_rows(x, n_in),
                 .b = qwen_rows_bf16(w, n_in),
                 .n_rows = n_rows,
                 .n_cols = n_out,
                 .n_sum = n_in,
                 .add = add,
                 .cols_a_block = MIN_COLS_A_TASK};
    qwen_pool_run(pool, (n_out + MIN_COLS_A_TASK - 1) / MIN_COLS_A_TASK,
                  2.0 * (double)n_rows * (double)n_out * (double)n_in, make_columns, &t);
}
