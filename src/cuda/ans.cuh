/* Codes the symbols of a block by rANS, from the last to the first: FORMAT.md, section 6.3.
 * One warp for each block of a tensor. The lanes load what the next 32 symbols need while
 * those before are coded; then all of them follow both states.
 * The states do not depend on each other, so the two chains overlap.
 */

/* A dw_ans_symbol in 32 bits. */
typedef struct ans_step {
    uint32_t most;      /* a state above it must be shifted first */
    uint32_t low, high; /* of the reciprocal */
    uint32_t start;     /* and 2^DW_ANS_BITS - size, 16 bits above it */
} ans_step;

typedef struct ans_memory {
    ans_step steps[WARP];
} ans_memory;

DW_DEVICE ans_step ans_step_of(const dw_ans_symbol *symbol)
{
    const uint64_t reciprocal = symbol->reciprocal;
    ans_step step;
    step.most = (uint32_t)((uint64_t)symbol->size << 20) - 1;
    step.low = (uint32_t)reciprocal;
    step.high = (uint32_t)(reciprocal >> 32);
    step.start = symbol->start | (DW_ANS_TOTAL - symbol->size) << 16;
    return step;
}

/* As dw_ans_code, without a branch. If the state is full, its low bits become word number
 * *N_WORDS; lane L keeps word L. */
DW_DEVICE uint32_t ans_code(uint32_t x, const ans_memory *s, uint32_t k, uint32_t *word,
                            uint32_t *n_words)
{
    const ans_step step = s->steps[k];
    const bool is_full = x > step.most;
    *word = is_full && lane_of() == *n_words ? x : *word;
    *n_words += is_full;
    x = is_full ? x >> 16 : x;
    const uint32_t quotient = (__umulhi(x, step.low) + x * step.high) >> 12;
    return x + (step.start & 0xffff) + quotient * (step.start >> 16);
}

DW_KERNEL(dw_cuda_ans, 32, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(ans_memory, s);
    dw_cuda_code *code = &job.codes[blockIdx.x];
    if (code->state != DW_CUDA_CODED || code->n_changes == 0)
        return;
    const dw_ans_symbol(*tables)[DW_ANS_SYMBOLS] = job.constants->symbols;
    const uint8_t *symbols = job.bytes + code->symbols;
    uint16_t *at = (uint16_t *)(job.bytes + code->ans_end);
    uint32_t even = DW_ANS_LOW, odd = DW_ANS_LOW; /* the states of such symbols */
    uint32_t run = code->n_runs - 1, base = (code->n_symbols - 1) / WARP * WARP;
    uint32_t n = code->n_symbols - base; /* of the 32 symbols from `base` on */
    uint32_t i = base + lane_of();
    while (run > 0 && i < code->run_end[run - 1])
        run--;
    ans_step next = ans_step_of(&tables[code->run_table[run]][lane_of() < n ? symbols[i] : 0]);
    for (;;) {
        s->steps[lane_of()] = next;
        __syncwarp();
        if (base > 0) {
            i = base - WARP + lane_of();
            while (run > 0 && i < code->run_end[run - 1])
                run--;
            next = ans_step_of(&tables[code->run_table[run]][symbols[i]]);
        }
        uint32_t word = 0, n_words = 0;
        if (n == WARP) {
            DW_UNROLL /* all of it, so that steps are loaded early */
            for (uint32_t k = WARP; k > 0; k -= 2) {
                odd = ans_code(odd, s, k - 1, &word, &n_words);
                even = ans_code(even, s, k - 2, &word, &n_words);
            }
        } else {
            if (n % 2)
                even = ans_code(even, s, --n, &word, &n_words);
            DW_UNROLL_BY(1)
            for (uint32_t k = n; k > 0; k -= 2) {
                odd = ans_code(odd, s, k - 1, &word, &n_words);
                even = ans_code(even, s, k - 2, &word, &n_words);
            }
        }
        if (lane_of() < n_words)
            at[-1 - (int)lane_of()] = (uint16_t)word;
        __syncwarp(); /* the steps were read */
        at -= n_words;
        if (base == 0)
            break;
        base -= WARP;
        n = WARP;
    }
    at -= 4;
    if (lane_of() == 0) {
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
