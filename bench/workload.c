#include "workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

enum { NAME_BYTES = 160, PATH_BYTES = 4096 }; /* of a repeated tensor; of a path */

/* ---- a trace ---- */

static void format_step(char out[PATH_BYTES], const char *trace_dir, unsigned step)
{
    snprintf(out, PATH_BYTES, "%s/deltas/step_%06u.safetensors", trace_dir, step);
}

unsigned bench_trace_steps(const char *trace_dir)
{
    char path[PATH_BYTES];
    unsigned n = 0;
    do
        format_step(path, trace_dir, n + 1);
    while (access(path, F_OK) == 0 && ++n < 999999);
    return n;
}

/* ---- a small model ---- */

dw_status bench_model_open(bench_model *out, const char *trace_dir, dw_error *err)
{
    char path[PATH_BYTES];
    *out = (bench_model){0};
    snprintf(path, sizeof path, "%s/base", trace_dir);
    dw_status status = dw_checkpoint_open(&out->ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    const dw_tensor *mapped = dw_checkpoint_tensors(out->ckpt, &out->n_tensors);
    out->tensors = calloc(out->n_tensors + 1, sizeof *out->tensors);
    for (size_t i = 0; out->tensors && i < out->n_tensors; i++) {
        out->tensors[i] = mapped[i];
        out->tensors[i].data = malloc(mapped[i].n_bytes + 1);
        if (!out->tensors[i].data) {
            bench_model_release(out);
            return dw_fail_memory(err, path);
        }
        memcpy(out->tensors[i].data, mapped[i].data, mapped[i].n_bytes);
    }
    return out->tensors ? DW_OK : dw_fail_memory(err, path);
}

dw_status bench_model_step(bench_model *m, const char *trace_dir, unsigned step,
                           dw_error *err)
{
    char path[PATH_BYTES];
    dw_delta *delta;
    format_step(path, trace_dir, step);
    dw_status status = dw_delta_open(&delta, path, err);
    if (status != DW_OK)
        return status;
    status = dw_delta_apply(delta, m->tensors, m->n_tensors, NULL, err);
    dw_delta_close(delta);
    return status;
}

void bench_model_release(bench_model *m)
{
    for (size_t i = 0; m->tensors && i < m->n_tensors; i++)
        free(m->tensors[i].data);
    free(m->tensors);
    dw_checkpoint_close(m->ckpt);
    *m = (bench_model){0};
}

/* ---- the workload ---- */

/* Anonymous memory with large pages if there are some, like a trainer's weights. */
static void *map_version(uint64_t n_bytes)
{
    void *room =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    madvise(room, n_bytes, MADV_HUGEPAGE);
    return room;
}

static dw_tensor *make_version(const bench_workload *w, const dw_tensor *model,
                               size_t n_model)
{
    dw_tensor *tensors = calloc(w->n_tensors, sizeof *tensors);
    uint8_t *room = tensors ? map_version(w->n_bytes) : NULL;
    if (!room) {
        free(tensors);
        return NULL;
    }
    for (size_t t = 0; t < w->n_tensors; t++) {
        tensors[t] = model[t % n_model];
        tensors[t].name = w->names + t * NAME_BYTES;
        tensors[t].data = room;
        room += tensors[t].n_bytes;
    }
    return tensors;
}

/* Makes room for three versions, each with the tensors of MODEL repeated. The shapes
 * belong to MODEL. */
static dw_status lay_out(bench_workload *w, const dw_tensor *model, size_t n_model,
                         uint64_t n_bytes, dw_error *err)
{
    uint64_t n_tile = 0;
    for (size_t i = 0; i < n_model; i++)
        n_tile += model[i].n_bytes;
    if (n_tile == 0)
        return dw_fail(err, DW_INVALID, NULL, "the base of the trace holds no weights");
    uint64_t n_tiles = (n_bytes + n_tile - 1) / n_tile;
    w->n_tensors = n_model * (size_t)n_tiles;
    w->n_bytes = n_tile * n_tiles;
    w->names = calloc(w->n_tensors, NAME_BYTES);
    if (!w->names)
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < w->n_tensors; t++)
        snprintf(w->names + t * NAME_BYTES, NAME_BYTES, "tile%03zu.%s", t / n_model,
                 model[t % n_model].name);
    w->old = make_version(w, model, n_model);
    w->new_ = make_version(w, model, n_model);
    w->base = make_version(w, model, n_model);
    return w->old && w->new_ && w->base ? DW_OK : dw_fail_memory(err, NULL);
}

static void fill(dw_tensor *tensors, size_t n_tensors, const dw_tensor *model,
                 size_t n_model)
{
    for (size_t t = 0; t < n_tensors; t++)
        memcpy(tensors[t].data, model[t % n_model].data, model[t % n_model].n_bytes);
}

void bench_workload_reset(bench_workload *w)
{
    memcpy(w->base[0].data, w->old[0].data, w->n_bytes);
}

void bench_workload_release(bench_workload *w)
{
    dw_tensor *versions[] = {w->old, w->new_, w->base};
    for (size_t v = 0; v < 3; v++) {
        if (versions[v])
            munmap(versions[v][0].data, w->n_bytes);
        free(versions[v]);
    }
    free(w->names);
    bench_model_release(&w->model);
    *w = (bench_workload){0};
}

dw_status bench_workload_trace(bench_workload *out, const char *dir, unsigned step,
                               uint64_t n_bytes, dw_error *err)
{
    *out = (bench_workload){.kind = "rl-trace"};
    bench_model *model = &out->model;
    dw_status status = bench_model_open(model, dir, err);
    if (status == DW_OK)
        status = lay_out(out, model->tensors, model->n_tensors, n_bytes, err);
    for (unsigned s = 1; status == DW_OK && s <= step; s++) {
        if (s == step)
            fill(out->old, out->n_tensors, model->tensors, model->n_tensors);
        status = bench_model_step(model, dir, s, err);
    }
    if (status == DW_OK) {
        fill(out->new_, out->n_tensors, model->tensors, model->n_tensors);
        bench_workload_reset(out);
    } else {
        bench_workload_release(out);
    }
    return status;
}

/* ---- without the trace ---- */

static uint64_t random_of(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* A float of about the standard normal distribution, from four 16-bit uniforms. */
static float normal_of(uint64_t r)
{
    float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) +
                (float)(r >> 32 & 0xffff) + (float)(r >> 48);
    return (sum / 65535.0f - 2.0f) * 1.732f;
}

static uint16_t bf16_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

dw_status bench_workload_synthetic(bench_workload *out, uint64_t n_bytes, dw_error *err)
{
    enum { N = 16 << 20 };
    static const uint64_t dims[] = {4096, 4096};
    const dw_tensor model = {"weight", DW_BF16, 2, dims, 2ull * N, NULL, 0, NULL};
    *out = (bench_workload){.kind = "synthetic"};
    dw_status status = lay_out(out, &model, 1, n_bytes, err);
    if (status != DW_OK) {
        bench_workload_release(out);
        return status;
    }
    uint16_t *old = out->old[0].data, *new_ = out->new_[0].data;
    for (uint64_t i = 0; i < N; i++) {
        float w = 0.03f * normal_of(random_of(2 * i));
        float u = 2e-6f * normal_of(random_of(2 * i + 1));
        old[i] = bf16_of(w);
        new_[i] = bf16_of(w + u);
    }
    for (size_t t = 1; t < out->n_tensors; t++) {
        memcpy(out->old[t].data, old, 2ull * N);
        memcpy(out->new_[t].data, new_, 2ull * N);
    }
    bench_workload_reset(out);
    return DW_OK;
}
