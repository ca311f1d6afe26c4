/* Codes the symbols of a block by rANS, from the last to the first: FORMAT.md, section 6.3.
 * One warp for each block of a tensor. The lanes load what the next 32 symbols need; then
 * all of them follow both states, and the first one writes. The states do not depend on
 * each other, so the two chains overlap.
 */

typedef struct ans_memory {
    dw_ans_symbol steps[WARP];
} ans_memory;

DW_KERNEL(dw_cuda_ans, 32, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(ans_memory, s);
    dw_cuda_code *code = &job.codes[blockIdx.x];
    if (code->state != DW_CUDA_CODED || code->n_changes == 0)
        return;
    const uint8_t *symbols = job.bytes + code->symbols;
    uint16_t *at = (uint16_t *)(job.bytes + code->ans_end);
    uint32_t even = DW_ANS_LOW, odd = DW_ANS_LOW; /* the states of such symbols */
    uint32_t run = code->n_runs - 1;
    const bool writes = lane_of() == 0;
    for (uint32_t base = (code->n_symbols - 1) / WARP * WARP;; base -= WARP) {
        const uint32_t i = base + lane_of();
        const uint32_t n = min32(WARP, code->n_symbols - base);
        while (run > 0 && i < code->run_end[run - 1])
            run--;
        __syncwarp(); /* the steps before were read */
        if (lane_of() < n)
            s->steps[lane_of()] = job.constants->symbols[code->run_table[run]][symbols[i]];
        __syncwarp();
        for (uint32_t k = n; k-- > 0;) {
            unsigned n_full;
            const uint32_t x = k % 2 ? odd : even;
            const uint32_t next = dw_ans_code(x, &s->steps[k], &n_full);
            at -= n_full;
            if (n_full && writes)
                *at = (uint16_t)x;
            odd = k % 2 ? next : odd;
            even = k % 2 ? even : next;
        }
        if (base == 0)
            break;
    }
    at -= 4;
    if (writes) {
        at[0] = (uint16_t)even;
        at[1] = (uint16_t)(even >> 16);
        at[2] = (uint16_t)odd;
        at[3] = (uint16_t)(odd >> 16);
        uint32_t n_length = 1;
        const uint32_t n_ans = (uint32_t)(job.bytes + code->ans_end - (uint8_t *)at);
        for (uint32_t v = n_ans; v >= 0x80; v >>= 7)
            n_length++;
        code->n_ans = n_ans;
        code->n_bytes = n_length + n_ans + code->n_bits;
    }
}
