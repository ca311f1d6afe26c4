#include "gpu_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct shape {
    const char *name;
    int n_layers;
    uint64_t vocabulary, hidden, heads, kv, inner; /* the head's size is 128 */
    uint64_t n_pool;
} shape;

const char gpu_model_names[] = "0.6b 7.6b tiny";

static const shape shapes[] = {
    {"0.6b", 28, 151936, 1024, 2048, 1024, 3072, 64u << 20},
    {"7.6b", 36, 151936, 4096, 4096, 1024, 12288, 64u << 20},
    {"tiny", 1, 500, 128, 128, 128, 160, 1u << 16},
};

/* ---- weights ---- */

static uint64_t seed = 1;

static uint64_t random_bits(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* About normal, of the size of a weight. */
static uint16_t random_weight(void)
{
    const uint64_t r = random_bits();
    const int32_t sum =
        (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) -
        131070;
    const float f = (float)sum * (0.02f / 37837.0f);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static dw_status make_pool(gpu_model *m, uint64_t n, dw_error *err)
{
    const dw_cuda_driver *driver = m->c->driver;
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        dw_status status = dw_cuda_check(driver, driver->host_alloc(&memory, 2 * n, 0),
                                         m->c->where, "get pinned memory", err);
        if (status != DW_OK)
            return status;
        m->pool[i] = memory;
    }
    m->n_pool = n;
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t r = random_bits();
        const uint16_t x = random_weight();
        m->pool[0][k] = x;
        m->pool[1][k] = r % 1000 < 11 ? (uint16_t)(r >> 32 & 1 ? x + 1 : x - 1) : x;
    }
    return DW_OK;
}

/* Fills one version. Tensors begin at different places of the pool. */
static dw_status fill(gpu_model *m, int version, dw_error *err)
{
    const dw_tensor *tensors = version ? m->next : m->base;
    uint64_t from = 0;
    dw_status status = dw_cuda_enter(m->c, err);
    if (status != DW_OK)
        return status;
    for (size_t t = 0; t < m->n_tensors; t++)
        for (uint64_t at = 0, n = tensors[t].n_bytes / 2; status == DW_OK && at < n;) {
            uint64_t now = m->n_pool - from;
            now = now < n - at ? now : n - at;
            status = dw_cuda_up(m->c, (cu_pointer)(uintptr_t)tensors[t].data + 2 * at,
                                m->pool[version] + from, 2 * now, err);
            at += now;
            from = at < n ? 0 : (from + now + 4099) % m->n_pool;
        }
    if (status == DW_OK)
        status = dw_cuda_wait(m->c, err);
    dw_cuda_drain(m->c, status);
    dw_cuda_leave(m->c);
    return status;
}

dw_status gpu_model_refill(gpu_model *m, dw_error *err)
{
    return fill(m, 0, err);
}

/* ---- tensors ---- */

static void add(gpu_model *m, int layer, const char *what, uint64_t rows,
                uint64_t columns)
{
    gpu_tensor_name *name = &m->names[m->n_tensors];
    if (layer < 0)
        snprintf(name->text, sizeof name->text, "%s", what);
    else
        snprintf(name->text, sizeof name->text, "layers.%02d.%s", layer, what);
    name->dims[0] = rows;
    name->dims[1] = columns;
    m->base[m->n_tensors++] = (dw_tensor){.name = name->text,
                                          .dtype = DW_BF16,
                                          .n_dims = columns ? 2 : 1,
                                          .dims = name->dims,
                                          .n_bytes = 2 * rows * (columns ? columns : 1)};
}

static void add_layer(gpu_model *m, const shape *s, int k)
{
    add(m, k, "input_norm", s->hidden, 0);
    add(m, k, "mlp.down", s->hidden, s->inner);
    add(m, k, "mlp.gate", s->inner, s->hidden);
    add(m, k, "mlp.up", s->inner, s->hidden);
    add(m, k, "post_norm", s->hidden, 0);
    add(m, k, "self.k", s->kv, s->hidden);
    add(m, k, "self.k_norm", 128, 0);
    add(m, k, "self.o", s->hidden, s->heads);
    add(m, k, "self.q", s->heads, s->hidden);
    add(m, k, "self.q_norm", 128, 0);
    add(m, k, "self.v", s->kv, s->hidden);
}

static dw_status make_tensors(gpu_model *m, const shape *s, dw_error *err)
{
    const size_t n_most = 11 * (size_t)s->n_layers + 2;
    m->names = calloc(n_most, sizeof *m->names);
    m->base = calloc(n_most, sizeof *m->base);
    m->next = calloc(n_most, sizeof *m->next);
    if (!m->names || !m->base || !m->next)
        return dw_fail_memory(err, s->name);
    add(m, -1, "embedding", s->vocabulary, s->hidden);
    for (int k = 0; k < s->n_layers; k++)
        add_layer(m, s, k);
    add(m, -1, "norm", s->hidden, 0);
    memcpy(m->next, m->base, m->n_tensors * sizeof *m->base);
    return DW_OK;
}

/* One allocation for a version; tensors begin at multiples of 256 bytes, as PyTorch's. */
static dw_status place(gpu_model *m, dw_tensor *tensors, cu_pointer *memory,
                       dw_error *err)
{
    uint64_t n_bytes = 0;
    for (size_t t = 0; t < m->n_tensors; t++)
        n_bytes += (tensors[t].n_bytes + 255) / 256 * 256;
    dw_status status = dw_cuda_enter(m->c, err);
    if (status != DW_OK)
        return status;
    status = dw_cuda_alloc(memory, m->c, n_bytes, "weights", err);
    dw_cuda_leave(m->c);
    cu_pointer at = *memory;
    for (size_t t = 0; status == DW_OK && t < m->n_tensors; t++) {
        tensors[t].data = dw_cuda_address(at);
        at += (tensors[t].n_bytes + 255) / 256 * 256;
    }
    return status;
}

dw_status gpu_model_open(gpu_model *out, dw_cuda *c, const char *name, dw_error *err)
{
    const shape *s = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            s = &shapes[i];
    *out = (gpu_model){.c = c, .name = name};
    if (!s)
        return dw_fail(err, DW_NOT_FOUND, name, "no such model: there are %s",
                       gpu_model_names);
    dw_status status = make_tensors(out, s, err);
    if (status == DW_OK)
        status = place(out, out->base, &out->memory[0], err);
    if (status == DW_OK)
        status = place(out, out->next, &out->memory[1], err);
    if (status == DW_OK)
        status = dw_cuda_enter(c, err);
    if (status == DW_OK) {
        status = make_pool(out, s->n_pool, err);
        dw_cuda_leave(c);
    }
    for (int i = 0; status == DW_OK && i < 2; i++)
        status = fill(out, i, err);
    for (size_t t = 0; t < out->n_tensors; t++)
        out->n_elems += out->base[t].n_bytes / 2;
    if (status != DW_OK)
        gpu_model_close(out);
    return status;
}

void gpu_model_close(gpu_model *m)
{
    if (dw_cuda_enter(m->c, NULL) == DW_OK) {
        for (int i = 0; i < 2; i++) {
            dw_cuda_free(m->c, &m->memory[i]);
            if (m->pool[i])
                (void)m->c->driver->host_free(m->pool[i]);
        }
        dw_cuda_leave(m->c);
    }
    free(m->names);
    free(m->base);
    free(m->next);
    *m = (gpu_model){0};
}
