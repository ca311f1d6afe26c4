#include "codec/class_block.h"

#include "base/map.h"
#include "base/mem.h"
#include "codec/class_scratch.h"
#include "codec/element.h"

dw_class_scratch *dw_class_scratch_new(void)
{
    return dw_alloc(sizeof(dw_class_scratch));
}

void dw_class_scratch_free(dw_class_scratch *s)
{
    dw_free(s);
}

dw_note dw_note_at(uint64_t first_byte)
{
    return (dw_note){.digest = dw_digest_moves_from(first_byte),
                     .first_byte = first_byte};
}

/* ---- classes ---- */

dw_class_map dw_class_map_make(dw_element element, uint32_t base)
{
    if (!element.is_float)
        return (dw_class_map){0};
    return (dw_class_map){~0ull >> (65 - 8 * element.width), base,
                          element.exponent_shift};
}

dw_class_map dw_class_map_choose(const void *data, uint64_t n_elems, dw_element element)
{
    /* sample short runs: single elements would each miss the cache */
    enum { RUNS = 16, RUN_ELEMS = 256, EXPONENTS = 2048 };
    dw_class_map map = dw_class_map_make(element, 0);
    if (!element.is_float)
        return map;
    uint32_t counts[EXPONENTS] = {0};
    uint64_t n_samples = 0;
    dw_loan loan = {0};
    for (uint64_t run = 0; run < RUNS; run++) {
        const uint64_t begin = n_elems / RUNS * run;
        const uint64_t left = n_elems - begin;
        const size_t n = (size_t)(left < RUN_ELEMS ? left : RUN_ELEMS);
        const void *elems;
        /* skip bytes that cannot be read: the encoder will report the fault */
        if (dw_map_read(&elems, &loan, (const uint8_t *)data + begin * element.width,
                        n * element.width, NULL) != DW_OK)
            break;
        for (size_t i = 0; i < n; i++) {
            uint64_t x = dw_element_load(elems, i, element.width);
            counts[(x & map.magnitude) >> map.shift]++;
            n_samples++;
        }
    }
    dw_loan_release(&loan);
    /* the largest exponents are rare and share the last class; 16 from there down */
    uint64_t above = 0;
    uint32_t top = EXPONENTS - 1;
    while (top > 0 && above + counts[top] <= n_samples / 128)
        above += counts[top--];
    map.base = top >= DW_CLASSES ? top - (DW_CLASSES - 1) : 0;
    return map;
}
