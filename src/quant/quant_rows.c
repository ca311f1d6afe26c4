/* The rows of one weight.
 *
 * Elements that share a scale are copied first, a block or a row at a time. The largest
 * magnitude and the quantised elements come from the copy: the source is read once, and
 * the copy is still in a cache when it is read again.
 */
#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "kernel/kernel.h"
#include "quant/quant.h"

#define TILE_ELEMS (DW_QUANT_BLOCK * DW_QUANT_BLOCK)

static float largest_of(const dw_quant_plan *plan)
{
    return plan->scheme == DW_QUANT_INT8_ROW ? 127.0f : 448.0f;
}

/* How the elements of a weight are read and written. */
typedef struct format {
    const dw_kernels *kernels;
    dw_dtype dtype; /* of the source */
    unsigned width; /* of its elements, bytes */
    bool by_block;
    unsigned kind; /* of the copy, an index of the kernels: 0 BF16, 1 F32 */
    float largest; /* of the quantised type */
    void (*quantise)(uint8_t *out, const void *in, size_t n, float scale);
} format;

static format format_of(const dw_quant_plan *plan, const dw_quant_entry *e)
{
    const bool is_int = plan->scheme == DW_QUANT_INT8_ROW;
    format f = {
        .kernels = dw_kernels_get(),
        .dtype = e->source_dtype,
        .width = e->source_dtype == DW_F32 ? 4 : 2,
        .by_block = plan->scheme == DW_QUANT_FP8_BLOCK,
        .largest = largest_of(plan),
    };
    f.kind = e->source_dtype == DW_F16 || (e->source_dtype == DW_F32 && plan->from_f32);
    f.quantise = is_int ? f.kernels->quant_int8[f.kind] : f.kernels->quant_fp8[f.kind];
    return f;
}

uint64_t dw_quant_unit_rows(const dw_quant_plan *plan, size_t weight)
{
    (void)weight;
    return plan->scheme == DW_QUANT_FP8_BLOCK ? DW_QUANT_BLOCK : 1;
}

uint64_t dw_quant_unit_end(const dw_quant_plan *plan, size_t weight, uint64_t row)
{
    const dw_quant_entry *e = &plan->entries[weight];
    const uint64_t n_unit = dw_quant_unit_rows(plan, weight);
    const uint64_t in_matrix = row % e->n_rows, matrix = row - in_matrix;
    const uint64_t end = in_matrix - in_matrix % n_unit + n_unit;
    return matrix + (end < e->n_rows ? end : e->n_rows);
}

static uint64_t ceil_div(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

uint64_t dw_quant_scales_before(const dw_quant_plan *plan, size_t weight, uint64_t row)
{
    const dw_quant_entry *e = &plan->entries[weight];
    if (plan->scheme != DW_QUANT_FP8_BLOCK)
        return row;
    const uint64_t units = row / e->n_rows * ceil_div(e->n_rows, DW_QUANT_BLOCK) +
                           ceil_div(row % e->n_rows, DW_QUANT_BLOCK);
    return units * ceil_div(e->n_columns, DW_QUANT_BLOCK);
}

uint64_t dw_quant_unit_scales(const dw_quant_plan *plan, size_t weight)
{
    return plan->scheme == DW_QUANT_FP8_BLOCK
               ? ceil_div(plan->entries[weight].n_columns, DW_QUANT_BLOCK)
               : 1;
}

uint64_t dw_quant_scales_begun(const dw_quant_plan *plan, size_t weight, uint64_t element)
{
    const dw_quant_entry *e = &plan->entries[weight];
    const uint64_t row = element / e->n_columns, column = element % e->n_columns;
    const uint64_t end = dw_quant_unit_end(plan, weight, row);
    if (row == e->n_matrices * e->n_rows || column == 0)
        return dw_quant_scales_before(plan, weight, row);
    /* in the first row of a unit the blocks begin one after the other */
    const bool is_first = row == 0 || dw_quant_unit_end(plan, weight, row - 1) == row;
    return is_first && plan->scheme == DW_QUANT_FP8_BLOCK
               ? dw_quant_scales_before(plan, weight, row) +
                     ceil_div(column, DW_QUANT_BLOCK)
               : dw_quant_scales_before(plan, weight, end);
}

/* F16 as F32, which is exact. */
static void widen_f16(float *restrict out, const uint16_t *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = in[i] & 0x7fffu;
        const bool is_small = magnitude < 0x0400, is_special = magnitude >= 0x7c00;
        /* a subnormal number is the mantissa of one that begins at 2^-14 */
        const uint32_t shifted = (magnitude << 13) + (is_special ? 0x70000000u
                                                      : is_small ? 0x38800000u
                                                                 : 0x38000000u);
        float value;
        memcpy(&value, &shifted, sizeof value);
        value -= is_small ? 0x1p-14f : 0.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits |= (uint32_t)(in[i] & 0x8000u) << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

/* Copies N elements of the source to element AT of the tile. */
static void take(const format *f, void *tile, size_t at, const uint8_t *from, size_t n)
{
    enum { AT_ONCE = 256 };
    if (f->dtype == DW_F32 && f->kind == 0) {
        f->kernels->round_bf16((uint16_t *)tile + at, from, n);
    } else if (f->dtype == DW_F16) {
        uint16_t taken[AT_ONCE];
        for (size_t i = 0, n_now; i < n; i += n_now) {
            n_now = n - i < AT_ONCE ? n - i : AT_ONCE;
            dw_read_once(taken, from + 2 * i, 2 * n_now);
            widen_f16((float *)tile + at + i, taken, n_now);
        }
    } else {
        dw_read_once((uint8_t *)tile + at * f->width, from, n * f->width);
    }
}

/* The elements that share one scale. */
typedef struct block {
    const uint8_t *src;
    uint8_t *out;
    uint64_t first; /* the element of the tensor that SRC begins with */
    size_t n_rows, n_columns;
    size_t pitch;        /* elements from row to row, in SRC and OUT */
    const uint8_t *next; /* where the next block begins, or NULL */
} block;

static dw_status fail_element(const format *f, const block *b, const void *tile,
                              const char *name, dw_error *err)
{
    size_t i = 0;
    const size_t width = f->kind == 0 ? 2 : 4;
    while (f->kernels->quant_max[f->kind]((const uint8_t *)tile + i * width, 1) <
           0x7f800000)
        i++;
    const bool is_nan =
        f->kernels->quant_max[f->kind]((const uint8_t *)tile + i * width, 1) > 0x7f800000;
    return dw_fail_tensor(err, DW_NOT_FINITE, NULL, name,
                          "element %" PRIu64 " is %s%s, which has no quantised value: "
                          "publish weights that are finite",
                          b->first + i / b->n_columns * b->pitch + i % b->n_columns,
                          is_nan ? "NaN" : "infinite",
                          f->dtype == DW_F32 && f->kind == 0 ? " as BF16" : "");
}

static float scale_of(uint32_t max_bits, float largest)
{
    float max;
    memcpy(&max, &max_bits, sizeof max);
    const float scale = max / largest;
    return max == 0 ? 1.0f : scale > FLT_MIN ? scale : FLT_MIN;
}

/* Fetches row R of the next block, while this one is rounded: rows are too far apart for
 * the processor to foresee them. */
static void prefetch_row(const format *f, const block *b, size_t r)
{
    enum { LINE = 64 };
    const uint8_t *at = b->next + r * b->pitch * f->width;
    for (size_t i = 0; i < DW_QUANT_BLOCK * f->width; i += LINE)
        __builtin_prefetch(at + i);
}

static dw_status do_block(const format *f, const block *b, void *tile, float *scale,
                          const char *name, dw_error *err)
{
    const size_t tile_width = f->kind == 0 ? 2 : 4;
    for (size_t r = 0; r < b->n_rows; r++)
        take(f, tile, r * b->n_columns, b->src + r * b->pitch * f->width, b->n_columns);
    const uint32_t max = f->kernels->quant_max[f->kind](tile, b->n_rows * b->n_columns);
    if (max >= 0x7f800000)
        return fail_element(f, b, tile, name, err);
    *scale = scale_of(max, f->largest);
    for (size_t r = 0; r < b->n_rows; r++) {
        if (b->next)
            prefetch_row(f, b, r);
        f->quantise(b->out + r * b->pitch,
                    (const uint8_t *)tile + r * b->n_columns * tile_width, b->n_columns,
                    *scale);
    }
    return DW_OK;
}

/* One unit: its blocks from left to right. SCALES moves on. */
static dw_status do_unit(const format *f, const dw_quant_entry *e, block unit, void *tile,
                         float **scales, dw_error *err)
{
    const size_t width = f->by_block ? DW_QUANT_BLOCK : unit.n_columns;
    for (size_t at = 0; at < unit.n_columns; at += width) {
        block b = unit;
        b.src += at * f->width;
        b.out += at;
        b.first += at;
        b.n_columns = unit.n_columns - at < width ? unit.n_columns - at : width;
        if (at + width < unit.n_columns)
            b.next = b.src + width * f->width;
        dw_status status = do_block(f, &b, tile, (*scales)++, e->tensor.name, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

static bool begins_unit(const dw_quant_plan *plan, size_t weight, uint64_t row)
{
    return row == 0 || dw_quant_unit_end(plan, weight, row - 1) == row;
}

static dw_status check_rows(const dw_quant_plan *plan, size_t weight, uint64_t first_row,
                            uint64_t n_rows, dw_error *err)
{
    const dw_quant_entry *e = &plan->entries[weight];
    const uint64_t n_all = e->n_matrices * e->n_rows;
    if (e->role != DW_QUANT_WEIGHT)
        return dw_fail_tensor(err, DW_INVALID, NULL, e->tensor.name, "is not quantised");
    if (first_row > n_all || n_rows > n_all - first_row ||
        !begins_unit(plan, weight, first_row) ||
        !begins_unit(plan, weight, first_row + n_rows))
        return dw_fail_tensor(err, DW_INVALID, NULL, e->tensor.name,
                              "%" PRIu64 " rows from row %" PRIu64
                              " on are no whole blocks",
                              n_rows, first_row);
    return DW_OK;
}

static dw_status do_rows(const dw_quant_plan *plan, size_t weight, const void *src,
                         uint64_t first_row, uint64_t n_rows, void *out, float *scales,
                         dw_error *err)
{
    uint32_t own[TILE_ELEMS];
    dw_status status = DW_OK;
    const dw_quant_entry *e = &plan->entries[weight];
    const format f = format_of(plan, e);
    const size_t n_columns = (size_t)e->n_columns;
    void *rented = NULL; /* for rows that are longer than a tile */
    if (!f.by_block && n_columns > TILE_ELEMS) {
        rented = dw_alloc_array(n_columns, sizeof(float));
        if (!rented)
            return dw_fail_memory(err, e->tensor.name);
    }
    for (uint64_t row = first_row, end; status == DW_OK && row < first_row + n_rows;
         row = end) {
        end = dw_quant_unit_end(plan, weight, row);
        const size_t at = (size_t)(row - first_row) * n_columns;
        const block unit = {
            .src = (const uint8_t *)src + at * f.width,
            .out = (uint8_t *)out + at,
            .first = row * n_columns,
            .n_rows = (size_t)(end - row),
            .n_columns = n_columns,
            .pitch = n_columns,
            .next = f.by_block && end < first_row + n_rows
                        ? (const uint8_t *)src +
                              (size_t)(end - first_row) * n_columns * f.width
                        : NULL,
        };
        status = do_unit(&f, e, unit, rented ? rented : own, &scales, err);
    }
    dw_free(rented);
    return status;
}

dw_status dw_quant_rows(const dw_quant_plan *plan, size_t weight, const void *src,
                        uint64_t first_row, uint64_t n_rows, void *out, float *scales,
                        dw_error *err)
{
    fenv_t callers;
    dw_status status = check_rows(plan, weight, first_row, n_rows, err);
    if (status != DW_OK)
        return status;
    /* a program may have changed how this thread rounds and treats subnormal numbers */
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    status = do_rows(plan, weight, src, first_row, n_rows, out, scales, err);
    fesetenv(&callers);
    return status;
}

/* ---- a part of one unit ---- */

/* A run of elements in one row that share a scale, at most a tile. */
typedef struct run {
    size_t at; /* from the first element of the part */
    size_t n;
    size_t scale; /* in the unit */
} run;

/* Moves on to the next run of N elements from FIRST on. False: there is none. */
static bool next_run(run *r, const format *f, const dw_quant_entry *e, uint64_t first,
                     uint64_t n)
{
    r->at += r->n;
    if (r->at >= n)
        return false;
    const uint64_t column = (first + r->at) % e->n_columns;
    const uint64_t k = f->by_block ? column / DW_QUANT_BLOCK : 0;
    uint64_t end = f->by_block ? (k + 1) * DW_QUANT_BLOCK : column + TILE_ELEMS;
    end = end < e->n_columns ? end : e->n_columns;
    r->n = (size_t)(end - column < n - r->at ? end - column : n - r->at);
    r->scale = (size_t)k;
    return true;
}

/* Copies the run to TILE and returns its largest magnitude. DW_NOT_FINITE as for rows. */
static dw_status take_run(uint32_t *max, const format *f, const dw_quant_entry *e,
                          const run *r, const void *src, uint64_t first, void *tile,
                          dw_error *err)
{
    const block b = {
        .first = first + r->at, .n_rows = 1, .n_columns = r->n, .pitch = r->n};
    take(f, tile, 0, (const uint8_t *)src + r->at * f->width, r->n);
    *max = f->kernels->quant_max[f->kind](tile, r->n);
    return *max < 0x7f800000 ? DW_OK : fail_element(f, &b, tile, e->tensor.name, err);
}

dw_status dw_quant_check(const dw_quant_plan *plan, size_t weight, const void *src,
                         uint64_t first, uint64_t n, dw_error *err)
{
    uint32_t tile[TILE_ELEMS], max;
    const dw_quant_entry *e = &plan->entries[weight];
    const format f = format_of(plan, e);
    dw_status status = DW_OK;
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    for (run r = {0}; status == DW_OK && (r.at += r.n) < n;) {
        r.n = n - r.at < TILE_ELEMS ? (size_t)n - r.at : TILE_ELEMS;
        status = take_run(&max, &f, e, &r, src, first, tile, err);
    }
    fesetenv(&callers);
    return status;
}

dw_status dw_quant_part_maxima(const dw_quant_plan *plan, size_t weight, const void *src,
                               uint64_t first, uint64_t n, uint32_t *maxima,
                               dw_error *err)
{
    uint32_t tile[TILE_ELEMS], max;
    const dw_quant_entry *e = &plan->entries[weight];
    const format f = format_of(plan, e);
    dw_status status = DW_OK;
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    for (run r = {0}; next_run(&r, &f, e, first, n);) {
        dw_status taken =
            take_run(&max, &f, e, &r, src, first, tile, status == DW_OK ? err : NULL);
        if (max > maxima[r.scale])
            maxima[r.scale] = max;
        status = status == DW_OK ? taken : status;
    }
    fesetenv(&callers);
    return status;
}

float dw_quant_scale(const dw_quant_plan *plan, uint32_t maximum)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    const float scale = scale_of(maximum, largest_of(plan));
    fesetenv(&callers);
    return scale;
}

/* Whether SCALE, which came from a maximum of all parts, is large enough for MAX. */
static bool is_enough(const format *f, float scale, uint32_t max)
{
    return scale_of(max, f->largest) <= scale;
}

static dw_status do_part(const format *f, const dw_quant_entry *e, const void *src,
                         uint64_t first, uint64_t n, uint8_t *out, const float *scales,
                         dw_error *err)
{
    uint32_t tile[TILE_ELEMS], max;
    for (run r = {0}; next_run(&r, f, e, first, n);) {
        dw_status status = take_run(&max, f, e, &r, src, first, tile, err);
        if (status != DW_OK)
            return status;
        if (max > 0 && !is_enough(f, scales[r.scale], max))
            return dw_fail_tensor(err, DW_STALE, NULL, e->tensor.name,
                                  "it changed while it was published: publish again when "
                                  "nobody writes it");
        f->quantise(out + r.at, tile, r.n, scales[r.scale]);
    }
    return DW_OK;
}

dw_status dw_quant_part(const dw_quant_plan *plan, size_t weight, const void *src,
                        uint64_t first, uint64_t n, void *out, const float *scales,
                        dw_error *err)
{
    const dw_quant_entry *e = &plan->entries[weight];
    const format f = format_of(plan, e);
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    dw_status status = do_part(&f, e, src, first, n, out, scales, err);
    fesetenv(&callers);
    return status;
}
