#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 << 10, SHARED_BYTES = 48 << 10 };

emulate_index threadIdx, blockIdx, blockDim, gridDim;

/* ---- fibers ---- */

#if defined(__x86_64__)

typedef void *fiber_context;

/* Saves the registers that a call must keep, and goes on at another stack. */
void emulate_switch(fiber_context *from, fiber_context to);
__asm__(".text\n"
        ".type emulate_switch, @function\n"
        "emulate_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n"
        "    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n"
        "    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emulate_switch, . - emulate_switch\n");

static void make_fiber(fiber_context *out, uint8_t *stack, void (*run)(void))
{
    /* the return address is where the stack is off by 8, as after a call */
    void **top = (void **)(void *)(stack + STACK_BYTES - 64);
    *--top = NULL;
    *--top = (void *)(uintptr_t)run;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    *out = top;
}

#define SWITCH(from, to) emulate_switch(from, *(to))

#else

#include <ucontext.h>

typedef ucontext_t fiber_context;

static void make_fiber(fiber_context *out, uint8_t *stack, void (*run)(void))
{
    getcontext(out);
    out->uc_stack.ss_sp = stack;
    out->uc_stack.ss_size = STACK_BYTES;
    out->uc_link = NULL;
    makecontext(out, run, 0);
}

#define SWITCH(from, to) swapcontext(from, to)

#endif

/* ---- a block ---- */

typedef struct barrier {
    unsigned n_arrived;
    uint64_t n_passed;
} barrier;

typedef struct warp {
    barrier barrier;
    uint64_t values[2][WARP]; /* of this call and the one before */
    unsigned masks[WARP];
} warp;

static struct {
    void (*kernel)(const void *);
    const void *argument;
    unsigned n_threads;
    fiber_context main;
    fiber_context fibers[MAX_THREADS];
    bool done[MAX_THREADS];
    uint8_t turn[MAX_THREADS]; /* which of values[] is a lane's next */
    uint8_t *stacks;
    barrier block;
    warp warps[MAX_THREADS / WARP];
    uint64_t n_events; /* threads that ended and barriers that were passed */
    uint64_t seed;
    size_t n_shared;
} now;

static uint64_t shared_memory[SHARED_BYTES / sizeof(uint64_t)];

static void die(const char *why)
{
    fprintf(stderr, "emulated kernel, block %u, thread %u: %s\n", blockIdx.x, threadIdx.x,
            why);
    abort();
}

static void yield(void)
{
    unsigned self = threadIdx.x;
    SWITCH(&now.fibers[self], &now.main);
}

static void pass(barrier *b, unsigned n)
{
    const uint64_t n_passed = b->n_passed;
    if (++b->n_arrived == n) {
        b->n_arrived = 0;
        b->n_passed++;
        now.n_events++;
        return;
    }
    while (b->n_passed == n_passed)
        yield();
}

void __syncthreads(void)
{
    pass(&now.block, now.n_threads);
}

void __syncwarp(void)
{
    pass(&now.warps[threadIdx.x / WARP].barrier, WARP);
}

const uint64_t *emulate_share(unsigned mask, uint64_t value)
{
    warp *w = &now.warps[threadIdx.x / WARP];
    const unsigned turn = now.turn[threadIdx.x];
    if (mask != 0xffffffffu)
        die("only full warps are emulated");
    now.turn[threadIdx.x] ^= 1;
    w->values[turn][threadIdx.x % WARP] = value;
    pass(&w->barrier, WARP);
    return w->values[turn];
}

uint64_t emulate_shuffle(unsigned mask, uint64_t value, unsigned lane)
{
    return emulate_share(mask, value)[lane % WARP];
}

uint64_t emulate_shuffle_up(unsigned mask, uint64_t value, unsigned by)
{
    unsigned lane = threadIdx.x % WARP;
    return emulate_share(mask, value)[lane >= by ? lane - by : lane];
}

uint64_t emulate_shuffle_xor(unsigned mask, uint64_t value, unsigned by)
{
    return emulate_share(mask, value)[(threadIdx.x % WARP) ^ by];
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
    const uint64_t *values = emulate_share(mask, predicate != 0);
    unsigned out = 0;
    for (unsigned i = 0; i < WARP; i++)
        out |= (unsigned)values[i] << i;
    return out;
}

unsigned __reduce_add_sync(unsigned mask, unsigned value)
{
    const uint64_t *values = emulate_share(mask, value);
    unsigned out = 0;
    for (unsigned i = 0; i < WARP; i++)
        out += (unsigned)values[i];
    return out;
}

unsigned __reduce_or_sync(unsigned mask, unsigned value)
{
    const uint64_t *values = emulate_share(mask, value);
    unsigned out = 0;
    for (unsigned i = 0; i < WARP; i++)
        out |= (unsigned)values[i];
    return out;
}

unsigned __match_any_sync(unsigned mask, unsigned value)
{
    const uint64_t *values = emulate_share(mask, value);
    unsigned out = 0;
    for (unsigned i = 0; i < WARP; i++)
        out |= (unsigned)(values[i] == value) << i;
    return out;
}

void *emulate_shared(size_t n_bytes)
{
    if (n_bytes > SHARED_BYTES)
        die("too much memory of the block");
    if (now.n_shared != 0 && now.n_shared != n_bytes)
        die("the memory of the block was asked for twice");
    now.n_shared = n_bytes;
    return shared_memory;
}

/* ---- a grid ---- */

static void run_thread(void)
{
    now.kernel(now.argument);
    now.done[threadIdx.x] = true;
    now.n_events++;
    for (;;)
        yield();
}

void emulate_seed(uint64_t seed)
{
    now.seed = seed;
}

static void run_block(unsigned n_threads)
{
    memset(now.done, 0, sizeof now.done);
    memset(now.turn, 0, sizeof now.turn);
    memset(&now.block, 0, sizeof now.block);
    memset(now.warps, 0, sizeof now.warps);
    memset(shared_memory, 0xa5, sizeof shared_memory);
    now.n_shared = 0;
    for (unsigned t = 0; t < n_threads; t++)
        make_fiber(&now.fibers[t], now.stacks + (size_t)t * STACK_BYTES, run_thread);
    for (unsigned n_left = n_threads; n_left > 0;) {
        const uint64_t n_events = now.n_events;
        /* forwards or backwards, from anywhere */
        now.seed = now.seed * 6364136223846793005ull + 1442695040888963407ull;
        const unsigned first = (unsigned)(now.seed >> 33) % n_threads;
        const bool back = now.seed >> 63;
        for (unsigned i = 0; i < n_threads; i++) {
            unsigned t = (back ? first + n_threads - i : first + i) % n_threads;
            if (now.done[t])
                continue;
            threadIdx.x = t;
            SWITCH(&now.main, &now.fibers[t]);
            n_left -= now.done[t];
        }
        if (now.n_events == n_events)
            die("its threads wait for each other at different places");
    }
}

void emulate_run(void (*kernel)(const void *argument), const void *argument,
                 unsigned n_blocks, unsigned n_threads)
{
    if (n_threads == 0 || n_threads > MAX_THREADS || n_threads % WARP != 0)
        die("no such number of threads");
    if (!now.stacks)
        now.stacks = malloc((size_t)MAX_THREADS * STACK_BYTES);
    if (!now.stacks)
        die("out of memory");
    now.kernel = kernel;
    now.argument = argument;
    now.n_threads = n_threads;
    gridDim.x = n_blocks;
    blockDim.x = n_threads;
    for (blockIdx.x = 0; blockIdx.x < n_blocks; blockIdx.x++)
        run_block(n_threads);
}
