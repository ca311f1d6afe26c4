/* Publishing weights on devices, beside a publisher of the same weights on the host: both
 * must commit the same bytes. For the fake driver and for real devices.
 *
 * The trainer writes with streams of its own and never waits for them. Right after each
 * publish it gives them bytes to write that must not get into the version.
 */
#ifndef TESTS_CUDA_PUBLISH_SUITE_H
#define TESTS_CUDA_PUBLISH_SUITE_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_context.h"
#include "cuda/cuda_device.h"
#include "deltawire/deltawire.h"
#include "stream/stream.h"
#include "unit/random_model.h"

enum { SUITE_TENSORS = 7, SUITE_DEVICES = 2 };

typedef struct suite {
    uint32_t n_devices;
    const dw_cuda_image *image;
    char name[64]; /* of the stores */
    dw_store *stores[2];
    dw_store *used; /* stores[0], or one in front of it */
    dw_device *devices[SUITE_DEVICES];
    dw_cuda *handles[SUITE_DEVICES]; /* whose streams are the trainer's */
    dw_tensor truth[SUITE_TENSORS];  /* on the host */
    dw_tensor live[SUITE_TENSORS];   /* where the trainer has them */
    uint64_t dims[SUITE_TENSORS];
    uint8_t *pinned; /* what streams copy from */
    bool as_bf16[SUITE_TENSORS];
    dw_baseline_memory baseline; /* of `live` */
    dw_publisher *publishers[2]; /* of `live`, of `truth` */
} suite;

static dw_baseline_memory suite_baseline; /* of the suites that are made next */

/* Where tensor I is: -1 on the host. */
static int suite_place(const suite *s, size_t i)
{
    static const int places[SUITE_TENSORS] = {0, 0, -1, 1, 0, 0, 1};
    return places[i] < (int)s->n_devices ? places[i] : 0;
}

static void suite_make(suite *s, uint32_t n_devices, const dw_cuda_image *image,
                       uint64_t n_elems, const char *name)
{
    static const char *const names[SUITE_TENSORS] = {
        "e.bf16", "m.master", "h.host", "d.bf16", "n.empty", "u.bytes", "f.f32"};
    static const dw_dtype types[SUITE_TENSORS] = {DW_BF16, DW_F32, DW_BF16, DW_BF16,
                                                  DW_F16,  DW_U8,  DW_F32};
    *s = (suite){.n_devices = n_devices, .image = image, .baseline = suite_baseline};
    snprintf(s->name, sizeof s->name, "%s", name);
    s->as_bf16[1] = true;
    for (size_t i = 0; i < SUITE_TENSORS; i++) {
        s->dims[i] = i == 4 ? 0 : i == 0 ? n_elems : 1 + n_elems / (i + 1);
        dw_tensor *t = &s->truth[i];
        *t = (dw_tensor){
            .name = names[i], .dtype = types[i], .n_dims = 1, .dims = &s->dims[i]};
        dw_shape_size(t->dtype, 1, t->dims, NULL, &t->n_bytes);
        t->data = calloc(t->n_bytes + 1, 1);
        fill_weights(t->data, dw_tensor_units(t), dw_dtype_element(t->dtype));
    }
}

static void suite_free(suite *s)
{
    for (size_t i = 0; i < SUITE_TENSORS; i++)
        free(s->truth[i].data);
}

/* ---- the trainer ---- */

/* Gives the streams the bytes of TRUTH to write, or noise. */
static dw_status suite_write(suite *s, bool noise, dw_error *err)
{
    dw_status status = DW_OK;
    uint8_t *from = s->pinned;
    uint64_t n_all = 0;
    for (size_t i = 0; i < SUITE_TENSORS; i++)
        n_all += s->truth[i].n_bytes;
    if (noise)
        from += n_all;
    for (size_t i = 0; status == DW_OK && i < SUITE_TENSORS; i++) {
        const dw_tensor *t = &s->live[i];
        const int place = suite_place(s, i);
        if (place < 0 && !noise)
            memcpy(t->data, s->truth[i].data, t->n_bytes);
        if (place < 0 || t->n_bytes == 0)
            continue;
        if (!noise)
            memcpy(from, s->truth[i].data, t->n_bytes);
        dw_cuda *c = s->handles[place];
        status = dw_cuda_enter(c, err);
        if (status == DW_OK) {
            status = dw_cuda_up(c, (cu_pointer)(uintptr_t)t->data, from, t->n_bytes, err);
            dw_cuda_leave(c);
        }
        from += t->n_bytes;
    }
    return status;
}

/* Waits for the streams. */
static dw_status suite_wait(suite *s, dw_error *err)
{
    dw_status status = DW_OK;
    for (uint32_t d = 0; d < s->n_devices; d++) {
        dw_status one = dw_cuda_enter(s->handles[d], err);
        if (one == DW_OK) {
            one = dw_cuda_wait(s->handles[d], err);
            dw_cuda_leave(s->handles[d]);
        }
        status = status == DW_OK ? one : status;
    }
    return status;
}

static void suite_change(suite *s, unsigned per_mille)
{
    for (size_t i = 0; i < SUITE_TENSORS; i++)
        change_weights(s->truth[i].data, dw_tensor_units(&s->truth[i]),
                       dw_dtype_element(s->truth[i].dtype), per_mille);
}

/* ---- opening and closing ---- */

static dw_publish_options suite_options(const suite *s)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 2;
    options.anchor_every = 2;
    options.sweep_every = 2;
    options.n_threads = 1;
    options.max_object_bytes = 16 << 10; /* several groups and objects */
    options.as_bf16 = s->as_bf16;
    options.baseline_memory = s->baseline;
    return options;
}

static void suite_close(suite *s)
{
    for (unsigned i = 0; i < 2; i++)
        dw_publisher_close(s->publishers[i]);
    for (uint32_t d = 0; d < s->n_devices; d++)
        if (s->handles[d])
            (void)suite_wait(&(suite){.n_devices = 1, .handles = {s->handles[d]}}, NULL);
    for (size_t i = 0; i < SUITE_TENSORS; i++) {
        dw_tensor *t = &s->live[i];
        if (t->device && t->data)
            t->device->ops->free(t->device, t->data);
        else if (!t->device)
            free(t->data);
        *t = (dw_tensor){0};
    }
    if (s->pinned && dw_cuda_enter(s->handles[0], NULL) == DW_OK) {
        (void)s->handles[0]->driver->host_free(s->pinned);
        dw_cuda_leave(s->handles[0]);
    }
    for (uint32_t d = 0; d < s->n_devices; d++) {
        dw_cuda_close(s->handles[d]);
        dw_device_close(s->devices[d]);
        s->handles[d] = NULL;
        s->devices[d] = NULL;
    }
    s->pinned = NULL;
    s->publishers[0] = s->publishers[1] = NULL;
}

static dw_status suite_place_all(suite *s, dw_error *err)
{
    dw_status status = DW_OK;
    uint64_t n_bytes = 1;
    for (uint32_t d = 0; status == DW_OK && d < s->n_devices; d++) {
        status = dw_cuda_device_open(&s->devices[d], d, s->image, err);
        if (status == DW_OK)
            status = dw_cuda_open(&s->handles[d], d, s->image, err);
    }
    for (size_t i = 0; status == DW_OK && i < SUITE_TENSORS; i++) {
        const int place = suite_place(s, i);
        dw_tensor t = s->truth[i];
        n_bytes += 2 * t.n_bytes;
        t.data = NULL;
        if (place >= 0) {
            t.device = s->devices[place];
            status = t.device->ops->alloc(&t.data, t.device, t.n_bytes, "weights", err);
        } else {
            t.data = malloc(t.n_bytes + 1);
        }
        s->live[i] = t;
    }
    if (status == DW_OK)
        status = dw_cuda_enter(s->handles[0], err);
    if (status == DW_OK) {
        void *pinned = NULL;
        status = dw_cuda_check(s->handles[0]->driver,
                               s->handles[0]->driver->host_alloc(&pinned, n_bytes, 0),
                               "here", "pin", err);
        s->pinned = status == DW_OK ? pinned : NULL;
        dw_cuda_leave(s->handles[0]);
    }
    for (uint64_t i = 0; status == DW_OK && i < n_bytes; i++)
        s->pinned[i] = (uint8_t)(i * 37);
    return status;
}

/* Opens the publisher of `live`. Close the suite in any case. */
static dw_status suite_open(suite *s, dw_error *err)
{
    const dw_publish_options options = suite_options(s);
    dw_status status = suite_place_all(s, err);
    if (status == DW_OK)
        status = suite_write(s, false, err);
    if (status == DW_OK)
        status = suite_wait(s, err);
    return status == DW_OK ? dw_publisher_open(&s->publishers[0], s->used, s->live,
                                               SUITE_TENSORS, &options, err)
                           : status;
}

/* ---- versions ---- */

/* Publishes `live` as the truth is now, and then spoils it. *TICKET is 0 if publish
 * itself failed. */
static dw_status suite_publish(suite *s, uint64_t *ticket, dw_error *err)
{
    dw_device_stream streams[SUITE_DEVICES];
    for (uint32_t d = 0; d < s->n_devices; d++)
        streams[d] = (dw_device_stream){s->devices[d], s->handles[d]->stream};
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.streams = streams;
    note.n_streams = s->n_devices;
    *ticket = 0;
    dw_status status = suite_write(s, false, err);
    if (status == DW_OK)
        status = dw_publisher_publish(s->publishers[0], ticket, &note, err);
    if (status == DW_OK)
        (void)suite_write(s, true, NULL);
    return status;
}

static dw_status suite_commit_once(suite *s, dw_publish_report *report, dw_error *err)
{
    uint64_t ticket;
    dw_status status = suite_publish(s, &ticket, err);
    (void)suite_wait(s, NULL); /* until the weights were read and spoilt */
    return status == DW_OK
               ? dw_publisher_wait(s->publishers[0], ticket, UINT_MAX, NULL, report, err)
               : status;
}

/* The same, and again if many more weights changed than in the version before. */
static dw_status suite_commit(suite *s, dw_publish_report *report, dw_error *err)
{
    dw_status status = suite_commit_once(s, report, err);
    return status == DW_UNAVAILABLE && strstr(err->text, "many more than")
               ? suite_commit_once(s, report, err)
               : status;
}

/* The same for the publisher on the host. */
static dw_status suite_commit_truth(suite *s, dw_publish_report *report, dw_error *err)
{
    uint64_t ticket;
    const dw_publish_options options = suite_options(s);
    if (!s->publishers[1])
        return dw_publisher_open(&s->publishers[1], s->stores[1], s->truth, SUITE_TENSORS,
                                 &options, err);
    dw_status status = dw_publisher_publish(s->publishers[1], &ticket, NULL, err);
    return status == DW_OK
               ? dw_publisher_wait(s->publishers[1], ticket, UINT_MAX, NULL, report, err)
               : status;
}

/* Whether both streams have the same bytes as version VERSION. */
static bool suite_same_objects(suite *s, uint64_t version)
{
    dw_commit_record commits[2];
    for (unsigned i = 0; i < 2; i++) {
        dw_stream *stream;
        const dw_trust trust = {0};
        if (dw_stream_open(&stream, s->stores[i], &trust, NULL) != DW_OK ||
            dw_stream_read_commit(stream, version, &commits[i], NULL) != DW_OK)
            return false;
        dw_stream_close(stream);
    }
    const dw_commit_record *a = &commits[0], *b = &commits[1];
    bool same = a->state == b->state && a->n_changed == b->n_changed &&
                a->objects.n == b->objects.n;
    for (size_t i = 0; same && i < a->objects.n; i++)
        same = memcmp(a->objects.items[i].sha256, b->objects.items[i].sha256,
                      DW_SHA256_BYTES) == 0;
    dw_commit_record_release(&commits[0]);
    dw_commit_record_release(&commits[1]);
    return same;
}

/* Whether a follower of the first stream, on the host, gets the truth. */
static bool suite_follows(suite *s)
{
    dw_tensor copy[SUITE_TENSORS];
    dw_follow_options options;
    dw_follow_options_init(&options);
    for (size_t i = 0; i < SUITE_TENSORS; i++) {
        copy[i] = s->truth[i];
        if (s->as_bf16[i]) {
            copy[i].dtype = DW_BF16;
            copy[i].n_bytes /= 2;
        }
        copy[i].data = calloc(copy[i].n_bytes + 1, 1);
    }
    options.tensors = copy;
    options.n_tensors = SUITE_TENSORS;
    options.n_threads = 1;
    dw_follower *f = NULL;
    dw_error err = {0};
    bool same = dw_follower_open(&f, s->stores[0], &options, &err) == DW_OK &&
                dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err) == DW_OK;
    if (!same)
        fprintf(stderr, "follow: %s: %s\n", err.where, err.text);
    dw_follower_close(f);
    for (size_t i = 0; i < SUITE_TENSORS; i++) {
        uint8_t *wanted = s->truth[i].data, *rounded = NULL;
        if (s->as_bf16[i]) {
            rounded = malloc(copy[i].n_bytes + 1);
            dw_cast_bf16((uint16_t *)(void *)rounded, s->truth[i].data,
                         copy[i].n_bytes / 2);
            wanted = rounded;
        }
        same = same && memcmp(copy[i].data, wanted, copy[i].n_bytes) == 0;
        free(rounded);
        free(copy[i].data);
    }
    return same;
}

#endif
