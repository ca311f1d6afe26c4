/* The trainer's state as a safetensors file: for each tensor its master and both moments
 * in fp32, and the number of steps. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "qwen_train.h"

enum { N_KINDS = 3 };

typedef struct state_tensor {
    char name[100];
    float *data;
    const qwen_tensor_info *info;
} state_tensor;

static state_tensor state_tensor_of(const qwen_trainer *t, size_t i, size_t kind)
{
    static const char *const kinds[N_KINDS] = {"master", "moment1", "moment2"};
    float *const arrays[N_KINDS] = {t->masters, t->moment1, t->moment2};
    state_tensor s = {.data = arrays[kind] + t->offsets[i], .info = &t->infos[i]};
    snprintf(s.name, sizeof s.name, "%s.%s", kinds[kind], t->infos[i].name);
    return s;
}

dw_status qwen_trainer_save_state(const qwen_trainer *t, const char *path, dw_error *err)
{
    size_t n = N_KINDS * t->n_tensors;
    state_tensor *states = calloc(n, sizeof *states);
    dw_tensor *tensors = calloc(n, sizeof *tensors);
    dw_status status;
    if (states == NULL || tensors == NULL) {
        status = wordle_fail(err, DW_NO_MEMORY, path, "out of memory");
    } else {
        for (size_t i = 0; i < n; i++) {
            states[i] = state_tensor_of(t, i / N_KINDS, i % N_KINDS);
            tensors[i] = (dw_tensor){.name = states[i].name,
                                     .dtype = DW_F32,
                                     .n_dims = states[i].info->n_dims,
                                     .dims = states[i].info->dims,
                                     .n_bytes = states[i].info->n_elems * sizeof(float),
                                     .data = states[i].data};
        }
        char steps[32];
        snprintf(steps, sizeof steps, "%" PRIu64, t->n_steps);
        dw_pair pair = {"steps", steps};
        dw_checkpoint_write_options options = {
            .struct_bytes = sizeof options, .metadata = &pair, .n_metadata = 1};
        status = dw_checkpoint_write(path, tensors, n, &options, err);
    }
    free(states);
    free(tensors);
    return status;
}

/* The tensor of the file that goes into S, or NULL. */
static const dw_tensor *find_state(const dw_checkpoint *file, const state_tensor *s)
{
    const dw_tensor *found = dw_checkpoint_find(file, s->name);
    bool fits =
        found != NULL && found->dtype == DW_F32 && found->n_dims == s->info->n_dims;
    for (uint32_t d = 0; fits && d < found->n_dims; d++)
        fits = found->dims[d] == s->info->dims[d];
    return fits ? found : NULL;
}

static bool parse_steps(const char *text, uint64_t *out)
{
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static dw_status take_state(qwen_trainer *t, const dw_checkpoint *file, const char *path,
                            dw_error *err)
{
    uint64_t n_steps;
    if (!parse_steps(dw_checkpoint_metadata(file, "steps"), &n_steps))
        return wordle_fail(err, DW_CORRUPT, path,
                           "says no number of steps: it is not a trainer's state");
    size_t n = N_KINDS * t->n_tensors;
    for (size_t i = 0; i < n; i++) {
        state_tensor s = state_tensor_of(t, i / N_KINDS, i % N_KINDS);
        if (find_state(file, &s) == NULL)
            return wordle_fail(
                err, DW_MISMATCH, path,
                "'%s' is not there, or has another shape: this is the state "
                "of another model",
                s.name);
    }
    for (size_t i = 0; i < n; i++) {
        state_tensor s = state_tensor_of(t, i / N_KINDS, i % N_KINDS);
        const dw_tensor *from = find_state(file, &s);
        memcpy(s.data, from->data, from->n_bytes);
    }
    t->n_steps = n_steps;
    t->has_forward = false;
    memset(t->grads, 0, t->n_params * sizeof *t->grads);
    dw_cast_bf16(t->weights, t->masters, t->n_params);
    return DW_OK;
}

dw_status qwen_trainer_load_state(qwen_trainer *t, const char *path, dw_error *err)
{
    dw_checkpoint *file;
    dw_status status = dw_checkpoint_open(&file, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    status = take_state(t, file, path, err);
    dw_checkpoint_close(file);
    return status;
}
