#include "follow/base.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/hash.h"
#include "store/store.h"
#include "tensor/tensor_list.h"
#include "tensor/device.h"

#define START      "deltawire-base/1\n"
#define PASS_BYTES (4u << 20)

typedef struct hashes {
    const dw_tensor *tensors;
    uint8_t (*sha256)[DW_SHA256_BYTES]; /* of the bytes of each */
} hashes;

/* Bytes on a device pass through the host, a few at a time. */
static dw_status hash_on_device(uint8_t out[DW_SHA256_BYTES], const dw_tensor *t,
                                dw_error *err)
{
    dw_sha256 hash;
    uint8_t *room = dw_alloc(PASS_BYTES);
    dw_status status = room ? dw_sha256_init(&hash, err) : dw_fail_memory(err, NULL);
    if (status != DW_OK) {
        dw_free(room);
        return status;
    }
    for (uint64_t at = 0, n; status == DW_OK && at < t->n_bytes; at += n) {
        const uint8_t *from = (const uint8_t *)t->data + at;
        n = t->n_bytes - at < PASS_BYTES ? t->n_bytes - at : PASS_BYTES;
        status = t->device->ops->read(t->device, room, from, n, err);
        if (status == DW_OK)
            dw_sha256_update(&hash, room, (size_t)n);
    }
    if (status == DW_OK)
        status = dw_sha256_final(&hash, out, err);
    dw_sha256_release(&hash);
    dw_free(room);
    return status;
}

static dw_status hash_tensor(void *context, size_t i, unsigned worker, dw_error *err)
{
    const hashes *h = context;
    const dw_tensor *t = &h->tensors[i];
    (void)worker;
    return t->device ? hash_on_device(h->sha256[i], t, err)
                     : dw_sha256_of(h->sha256[i], t->data, t->n_bytes, err);
}

static void write_text(dw_writer *out, const char *text)
{
    dw_write_u64(out, strlen(text));
    dw_write_text(out, text);
}

/* Every part has a length or a number before it, so that no two models give the same
 * bytes. */
static void write_tensor(dw_writer *out, const dw_tensor *t,
                         const uint8_t sha256[DW_SHA256_BYTES])
{
    write_text(out, t->name);
    write_text(out, dw_dtype_name(t->dtype));
    dw_write_u64(out, t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++)
        dw_write_u64(out, t->dims[d]);
    dw_write_u64(out, t->n_bytes);
    dw_write_bytes(out, sha256, DW_SHA256_BYTES);
}

dw_status dw_base_hash(uint8_t out[DW_SHA256_BYTES], const dw_tensor *tensors,
                       size_t n_tensors, unsigned n_threads, dw_error *err)
{
    hashes h = {tensors, dw_alloc_array(n_tensors, sizeof *h.sha256)};
    if (!h.sha256)
        return dw_fail_memory(err, NULL);
    dw_status status = dw_parallel(dw_worker_count(n_threads, n_tensors), n_tensors,
                                   hash_tensor, &h, NULL, err);
    dw_writer list = {0};
    dw_write_text(&list, START);
    dw_write_u64(&list, n_tensors);
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++)
        write_tensor(&list, &tensors[i], h.sha256[i]);
    if (status == DW_OK)
        status = list.failed ? dw_fail_memory(err, NULL)
                             : dw_sha256_of(out, list.bytes, list.n_bytes, err);
    dw_writer_release(&list);
    dw_free(h.sha256);
    return status;
}

dw_status dw_base_hash_check(const uint8_t wanted[DW_SHA256_BYTES],
                             const dw_tensor *tensors, size_t n_tensors,
                             unsigned n_threads, const char *where, dw_error *err)
{
    if (!dw_sha256_is_given(wanted))
        return DW_OK;
    uint8_t found[DW_SHA256_BYTES];
    dw_status status = dw_base_hash(found, tensors, n_tensors, n_threads, err);
    if (status != DW_OK || memcmp(found, wanted, sizeof found) == 0)
        return status;
    char want[DW_SHA256_TEXT], got[DW_SHA256_TEXT];
    dw_hex_encode(want, wanted, DW_SHA256_BYTES);
    dw_hex_encode(got, found, DW_SHA256_BYTES);
    return dw_fail(
        err, DW_UNTRUSTED, where,
        "the weights have the state digest of the stream's base, but their "
        "SHA-256 is %s, not %s: they are a forgery. Get the checkpoint from its "
        "publisher",
        got, want);
}

/* ---- a checkpoint ---- */

static dw_status prove(const dw_base *base, const dw_route_step *step, const char *path,
                       unsigned n_threads, dw_error *err)
{
    const dw_digest state = dw_target_state(base->source);
    if (state != step->state)
        return dw_fail(err, DW_MISMATCH, path,
                       "the stream starts from %s with the state digest %016" PRIx64
                       ", but this checkpoint has %016" PRIx64,
                       step->base && *step->base ? step->base : "a checkpoint",
                       step->state, state);
    size_t n;
    const dw_tensor *tensors = dw_target_tensors(base->source, &n);
    return dw_base_hash_check(step->base_sha256, tensors, n, n_threads, path, err);
}

dw_status dw_base_open(dw_base *out, const dw_stream *s, const dw_route_step *step,
                       const char *path, unsigned n_threads, dw_error *err)
{
    *out = (dw_base){0};
    dw_status status = dw_checkpoint_open(&out->ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(out->ckpt, &n_tensors);
    char difference[DW_DIFFERENCE_TEXT];
    if (n_tensors != s->record.n_tensors)
        return dw_fail(err, DW_MISMATCH, path,
                       "the checkpoint has %zu tensors, the stream's model %zu%s",
                       n_tensors, s->record.n_tensors,
                       dw_describe_difference(difference, s->record.tensors,
                                              s->record.n_tensors, tensors, n_tensors));
    status = dw_target_open_memory(&out->source, s->record.tensors, n_tensors, tensors,
                                   false, n_threads, err);
    return status == DW_OK ? prove(out, step, path, n_threads, err) : status;
}

void dw_base_close(dw_base *base)
{
    dw_target_close(base->source);
    dw_checkpoint_close(base->ckpt);
    *base = (dw_base){0};
}

dw_status dw_stream_check_base(dw_stream *s, const char *path, unsigned n_threads,
                               dw_error *err)
{
    dw_route_step step;
    dw_base base;
    dw_status status = dw_route_step_read(
        &step, s, &(dw_edge){.from = DW_NO_VERSION, .to = 0}, NULL, err);
    if (status != DW_OK)
        return status;
    if (step.content == DW_CONTENT_BASE) {
        status = dw_base_open(&base, s, &step, path, n_threads, err);
        dw_base_close(&base);
    } else {
        status = dw_fail(err, DW_INVALID, dw_store_url(s->store),
                         "version 0 is in the stream or a fork: it has no base to check");
    }
    dw_route_step_release(&step);
    return status;
}
