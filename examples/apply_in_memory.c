/* An inference engine's update: a delta arrives as bytes and is decoded and verified
 * while the engine serves. Only the stores happen in the pause.
 *
 *     apply_in_memory
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

enum { N = 1 << 20 };

static float served[N]; /* the engine's weights: version 0 */

static const uint64_t shape[] = {N};

static dw_tensor tensor_of(float *weights)
{
    return (dw_tensor){"model.weight", DW_F32, 1, shape, N * sizeof(float), weights, 0, NULL};
}

/* ---- the trainer, elsewhere
 * ------------------------------------------------------------ */

typedef struct message {
    uint8_t *bytes;
    size_t n_bytes;
} message;

static dw_status send_bytes(void *context, const void *bytes, size_t n_bytes,
                            dw_error *err)
{
    (void)err;
    message *m = context;
    uint8_t *grown = realloc(m->bytes, m->n_bytes + n_bytes);
    if (!grown)
        return DW_NO_MEMORY;
    memcpy(grown + m->n_bytes, bytes, n_bytes);
    m->bytes = grown;
    m->n_bytes += n_bytes;
    return DW_OK;
}

/* Trains a copy of the weights a little and sends the difference. */
static dw_status train_and_send(message *out, dw_error *err)
{
    static float trained[N];
    for (size_t i = 0; i < N; i++)
        trained[i] = i % 100 == 0 ? served[i] * 1.0001f : served[i];
    const dw_tensor base = tensor_of(served), next = tensor_of(trained);
    dw_delta *delta;
    dw_status status = dw_delta_diff(&delta, &base, &next, 1, NULL, err);
    if (status == DW_OK)
        status = dw_delta_write(delta, send_bytes, out, err);
    dw_delta_close(delta);
    return status;
}

/* ---- the engine
 * ------------------------------------------------------------------------- */

static dw_status update(const message *m, dw_error *err)
{
    const dw_tensor weights = tensor_of(served);
    dw_delta *delta = NULL;
    dw_patch *patch = NULL;
    dw_digest digest, state = 0;
    dw_delta_info info = {0};

    /* The engine keeps serving. The library checks the bytes, decodes the blocks against
     * the current weights, and proves that the result is the version that the delta
     * names. */
    dw_status status = dw_delta_open_bytes(&delta, m->bytes, m->n_bytes, "message", err);
    if (status == DW_OK)
        status = dw_delta_stage(&patch, delta, &weights, 1, NULL, err);
    if (status == DW_OK) {
        dw_delta_get_info(delta, &info);
        printf("staged version %" PRIu64 ": %" PRIu64 " stores from %zu bytes\n",
               info.new_version, dw_patch_changed(patch), m->n_bytes);
        /* pause the engine here, only for this call */
        status = dw_patch_apply(patch, &weights, 1, 0, err);
        /* resume the engine here */
    }
    /* Now and then, outside of the pause: compare the whole memory with the digest. */
    if (status == DW_OK)
        status = dw_digest_tensors(&digest, &state, &weights, 1, 0, NULL, err);
    if (status == DW_OK && state != info.new_state) {
        *err = (dw_error){.where = "model.weight",
                          .text = "the weights are NOT the new version"};
        status = err->code = DW_CORRUPT;
    }
    if (status == DW_OK)
        printf("weights are exactly version %" PRIu64 "\n", info.new_version);
    dw_patch_free(patch);
    dw_delta_close(delta);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s\n", argv[0]);
        return is_help ? 0 : 2;
    }
    message m = {0};
    dw_error err;
    for (size_t i = 0; i < N; i++)
        served[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
    dw_status status = train_and_send(&m, &err);
    if (status == DW_OK)
        status = update(&m, &err);
    /* The same delta again is refused, and nothing changes. */
    if (status == DW_OK && update(&m, &err) == DW_STALE)
        printf("again: %s\n", err.text);
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    free(m.bytes);
    return status != DW_OK;
}
