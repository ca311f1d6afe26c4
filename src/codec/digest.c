#include "codec/digest.h"

#include <pthread.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a hash state on the stack */
#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "kernel/kernel.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"
#include "inner.h"

#define P           DW_DIGEST_PRIME
#define CHUNK_WORDS (DW_DIGEST_CHUNK / 4)
#define SEED        0x64656c7461776972ull

/* Bytes that one thread reads at a time. */
#define SWEEP_BYTES (4u << 20)

static uint32_t low[CHUNK_WORDS], high[CHUNK_WORDS]; /* halves, for the kernels */
static uint64_t coefficients[CHUNK_WORDS];
static uint64_t generator;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* SplitMix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void make_coefficients(void)
{
    uint64_t state = SEED;
    for (unsigned j = 0; j < CHUNK_WORDS; j++) {
        uint64_t r = next_random(&state);
        low[j] = r & 0x3fffffff;
        high[j] = r >> 32 & 0x3fffffff;
        coefficients[j] = low[j] + ((uint64_t)high[j] << 30);
    }
    generator = next_random(&state) >> 4; /* below p */
}

static uint64_t power_of(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = dw_digest_times(result, base);
        base = dw_digest_times(base, base);
    }
    return result;
}

const uint64_t *dw_digest_coefficients(void)
{
    pthread_once(&once, make_coefficients);
    return coefficients;
}

uint64_t dw_digest_power(uint64_t chunk)
{
    pthread_once(&once, make_coefficients);
    return power_of(generator, chunk);
}

dw_digest dw_digest_share(const void *bytes, uint64_t n_bytes, uint64_t first_byte)
{
    pthread_once(&once, make_coefficients);
    const dw_kernels *k = dw_kernels_get();
    const uint8_t *at = bytes;
    uint64_t sum = 0, power = power_of(generator, first_byte / DW_DIGEST_CHUNK);
    uint64_t place = first_byte % DW_DIGEST_CHUNK; /* in the chunk */
    while (n_bytes > 0) {
        uint32_t padded[CHUNK_WORDS];
        const void *chunk = at;
        uint64_t n = DW_DIGEST_CHUNK - place;
        if (n_bytes < n)
            n = n_bytes;
        if (n < DW_DIGEST_CHUNK) {
            memset(padded, 0, sizeof padded);
            memcpy((uint8_t *)padded + place, at, n);
            chunk = padded;
        }
        sum = dw_digest_plus(sum,
                             dw_digest_times(power, k->digest_chunk(chunk, low, high)));
        power = dw_digest_times(power, generator);
        at += n;
        n_bytes -= n;
        place = 0;
    }
    return sum;
}

dw_digest dw_digest_sum(const dw_digest *digests, size_t n)
{
    dw_digest sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = dw_digest_plus(sum, digests[i]);
    return sum;
}

dw_digest dw_digest_bytes(const void *bytes, uint64_t n_bytes)
{
    return dw_digest_share(bytes, n_bytes, 0);
}

/* ---- changes ---- */

dw_digest_moves dw_digest_moves_from(uint64_t first_byte)
{
    pthread_once(&once, make_coefficients);
    uint64_t chunk = first_byte / DW_DIGEST_CHUNK;
    return (dw_digest_moves){.coefficients = coefficients,
                             .chunk = chunk,
                             .power = power_of(generator, chunk)};
}

static uint64_t reduce_signed(__int128 v)
{
    uint64_t r = dw_digest_reduce((unsigned __int128)(v < 0 ? -v : v));
    return v < 0 && r ? P - r : r;
}

dw_digest dw_digest_moves_sum(const dw_digest_moves *m)
{
    return dw_digest_plus(m->sum, dw_digest_times(m->power, reduce_signed(m->inside)));
}

void dw_digest_moves_enter(dw_digest_moves *m, uint64_t chunk)
{
    m->sum = dw_digest_moves_sum(m);
    m->inside = 0;
    m->power = chunk - m->chunk == 1
                   ? dw_digest_times(m->power, generator)
                   : dw_digest_times(m->power, power_of(generator, chunk - m->chunk));
    m->chunk = chunk;
}

/* ---- the model ---- */

uint64_t dw_digest_weight(const dw_tensor *tensor)
{
    const char *dtype = dw_dtype_name(tensor->dtype);
    XXH64_state_t state;
    XXH64_reset(&state, SEED);
    XXH64_update(&state, tensor->name, strlen(tensor->name) + 1);
    XXH64_update(&state, dtype, strlen(dtype) + 1);
    if (tensor->n_dims > 0)
        XXH64_update(&state, tensor->dims, tensor->n_dims * sizeof *tensor->dims);
    return XXH64_digest(&state) >> 4 | 1; /* below p, not zero */
}

dw_digest dw_digest_term(uint64_t weight, dw_digest digest)
{
    /* + 1: a tensor of zeros counts too */
    return dw_digest_times(weight, dw_digest_plus(digest, 1));
}

dw_digest dw_digest_state(const dw_tensor *tensors, const dw_digest *digests,
                          size_t n_tensors)
{
    dw_digest state = 0;
    for (size_t i = 0; i < n_tensors; i++)
        state = dw_digest_plus(state,
                               dw_digest_term(dw_digest_weight(&tensors[i]), digests[i]));
    return state;
}

typedef struct sweep {
    const dw_tensor *tensors;
    const size_t *tensor_of;  /* [items] */
    const size_t *first_item; /* [tensors] */
    dw_digest *shares;        /* [items] */
    dw_loan *loans;           /* [workers] */
} sweep;

static uint64_t sweep_first(const sweep *s, size_t i)
{
    return (i - s->first_item[s->tensor_of[i]]) * (uint64_t)SWEEP_BYTES;
}

static uint64_t sweep_bytes(const void *context, size_t i)
{
    const sweep *s = context;
    uint64_t left = s->tensors[s->tensor_of[i]].n_bytes - sweep_first(s, i);
    return left < SWEEP_BYTES ? left : SWEEP_BYTES;
}

static dw_status sweep_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    sweep *s = context;
    const uint64_t first = sweep_first(s, i), n = sweep_bytes(s, i);
    const dw_tensor *t = &s->tensors[s->tensor_of[i]];
    const void *bytes;
    dw_status status = dw_map_read(&bytes, &s->loans[worker],
                                   (const uint8_t *)t->data + first, (size_t)n, err);
    if (status == DW_OK)
        s->shares[i] = dw_digest_share(bytes, n, t->first_byte + first);
    return status;
}

/* Those that are in the memory of the host. */
static dw_status digest_host(dw_digest *out, const dw_tensor *tensors, size_t n_tensors,
                             unsigned n_threads, const dw_progress *progress,
                             dw_error *err)
{
    dw_status status = DW_OK;
    size_t n_items = 0;
    for (size_t t = 0; t < n_tensors; t++)
        n_items += (size_t)((tensors[t].n_bytes + SWEEP_BYTES - 1) / SWEEP_BYTES);
    size_t *tensor_of = dw_alloc_array(n_items, sizeof *tensor_of);
    size_t *first_item = dw_alloc_array(n_tensors, sizeof *first_item);
    dw_digest *shares = dw_alloc_array(n_items, sizeof *shares);
    const unsigned n_workers = dw_worker_count(n_threads, n_items);
    dw_loan *loans = dw_alloc_zeroed(n_workers, sizeof *loans);
    if (!tensor_of || !first_item || !shares || !loans) {
        status = dw_fail_memory(err, NULL);
        goto out;
    }
    size_t item = 0;
    dw_parallel_progress bar = {.bytes_of = sweep_bytes};
    for (size_t t = 0; t < n_tensors; t++) {
        bar.bytes_total += tensors[t].n_bytes;
        first_item[t] = item;
        for (uint64_t at = 0; at < tensors[t].n_bytes; at += SWEEP_BYTES)
            tensor_of[item++] = t;
    }
    sweep s = {tensors, tensor_of, first_item, shares, loans};
    if (progress)
        bar.report = *progress;
    status = dw_parallel(n_workers, n_items, sweep_item, &s, &bar, err);
    if (status != DW_OK)
        goto out;
    memset(out, 0, n_tensors * sizeof *out);
    for (size_t i = 0; i < n_items; i++)
        out[tensor_of[i]] = dw_digest_plus(out[tensor_of[i]], shares[i]);
out:
    for (unsigned w = 0; loans && w < n_workers; w++)
        dw_loan_release(&loans[w]);
    dw_free(loans);
    dw_free(tensor_of);
    dw_free(first_item);
    dw_free(shares);
    return status;
}

/* Those on DEVICE, or on the host if it is NULL, of a list that is on several. */
static dw_status digest_some(dw_digest *out, dw_device *device, const dw_tensor *tensors,
                             size_t n_tensors, unsigned n_threads,
                             const dw_progress *progress, dw_error *err)
{
    dw_tensor *some = dw_alloc_array(n_tensors, sizeof *some);
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    dw_status status = some && digests ? DW_OK : dw_fail_memory(err, NULL);
    size_t n = 0;
    for (size_t t = 0; status == DW_OK && t < n_tensors; t++)
        if (tensors[t].device == device)
            some[n++] = tensors[t];
    if (status == DW_OK)
        status = device ? device->ops->digest(device, digests, some, n, err)
                        : digest_host(digests, some, n, n_threads, progress, err);
    n = 0;
    for (size_t t = 0; status == DW_OK && t < n_tensors; t++)
        if (tensors[t].device == device)
            out[t] = digests[n++];
    dw_free(some);
    dw_free(digests);
    return status;
}

static dw_status digest_placed(dw_digest *out, const dw_tensor *tensors, size_t n_tensors,
                               unsigned n_threads, const dw_progress *progress,
                               dw_error *err)
{
    dw_device_list devices;
    dw_status status = dw_devices_of(&devices, tensors, n_tensors, err);
    if (status == DW_OK && devices.has_host)
        status = digest_some(out, NULL, tensors, n_tensors, n_threads, progress, err);
    for (size_t i = 0; status == DW_OK && i < devices.n; i++)
        status =
            digest_some(out, devices.items[i], tensors, n_tensors, n_threads, NULL, err);
    dw_device_list_release(&devices);
    return status;
}

dw_status dw_digest_tensors(dw_digest *out, dw_digest *state, const dw_tensor *tensors,
                            size_t n_tensors, unsigned n_threads,
                            const dw_progress *progress, dw_error *err)
{
    dw_status status = dw_tensors_check_placed(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_tensors_on_device(tensors, n_tensors)
                     ? digest_placed(out, tensors, n_tensors, n_threads, progress, err)
                     : digest_host(out, tensors, n_tensors, n_threads, progress, err);
    if (status == DW_OK && state)
        *state = dw_digest_state(tensors, out, n_tensors);
    return status;
}
