/* config.json: read with bounds on every number, written as transformers would. */
#include "qwen.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "json_file.h"

/* Larger than any model of this kind, small enough that products of three fit 64 bits. */
enum {
    MAX_VOCAB = 1 << 24,
    MAX_WIDTH = 1 << 18,
    MAX_LAYERS = 1 << 12,
    MAX_HEADS = 1 << 12
};

typedef struct reader {
    const json_t *root;
    const char *path;
    dw_error *err;
    dw_status status; /* the first failure */
} reader;

static void refuse(reader *r, dw_status code, const char *key, const char *why)
{
    if (r->status == DW_OK)
        r->status = wordle_fail(r->err, code, r->path, "'%s' %s", key, why);
}

/* OTHERWISE is the value of a missing or null member; 0: it is required. */
static uint32_t read_count(reader *r, const char *key, uint32_t max, uint32_t otherwise)
{
    const json_t *value = json_object_get(r->root, key);
    if (otherwise != 0 && (value == NULL || json_is_null(value)))
        return otherwise;
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > (json_int_t)max) {
        if (r->status == DW_OK)
            r->status = wordle_fail(r->err, DW_CORRUPT, r->path,
                                    "'%s' must be a number from 1 to %u", key, max);
        return 0;
    }
    return (uint32_t)json_integer_value(value);
}

static float read_positive(reader *r, const json_t *object, const char *key,
                           float otherwise)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value))
        return otherwise;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number > 0 && number < 1e30)) {
        refuse(r, DW_CORRUPT, key, "must be a positive number");
        return otherwise;
    }
    return (float)number;
}

static bool read_bool(reader *r, const char *key)
{
    const json_t *value = json_object_get(r->root, key);
    if (value != NULL && !json_is_boolean(value) && !json_is_null(value))
        refuse(r, DW_CORRUPT, key, "must be true or false");
    return json_is_true(value);
}

/* A member that must have this value if it exists. */
static void expect_string(reader *r, const json_t *object, const char *key,
                          const char *expected)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value))
        return;
    if (!json_is_string(value) || strcmp(json_string_value(value), expected) != 0) {
        char why[64];
        snprintf(why, sizeof why, "is not \"%s\": not a Qwen3 that this reads", expected);
        refuse(r, DW_UNSUPPORTED, key, why);
    }
}

/* transformers 5 writes rope_parameters, older ones rope_theta and rope_scaling. */
static float read_rope_theta(reader *r)
{
    float theta = read_positive(r, r->root, "rope_theta", 10000.0f);
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *rope = json_object_get(r->root, keys[i]);
        if (rope == NULL || json_is_null(rope))
            continue;
        if (!json_is_object(rope)) {
            refuse(r, DW_CORRUPT, keys[i], "must be an object");
            continue;
        }
        expect_string(r, rope, "rope_type", "default");
        expect_string(r, rope, "type", "default");
        theta = read_positive(r, rope, "rope_theta", theta);
    }
    return theta;
}

static int32_t read_token(reader *r, const char *key, const json_t *value,
                          uint32_t n_vocab)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= (json_int_t)n_vocab) {
        refuse(r, DW_CORRUPT, key, "must be a token of the vocabulary, or some");
        return -1;
    }
    return (int32_t)json_integer_value(value);
}

static void read_eos(reader *r, qwen_config *c)
{
    static const char key[] = "eos_token_id";
    const json_t *value = json_object_get(r->root, key);
    const size_t n = json_array_size(value);
    c->eos = -1;
    c->n_more_eos = 0;
    if (value == NULL || json_is_null(value) || (json_is_array(value) && n == 0))
        return;
    if (n > 1 + QWEN_MORE_EOS) {
        refuse(r, DW_UNSUPPORTED, key, "has more than 16 tokens");
        return;
    }
    c->eos = read_token(r, key, n > 0 ? json_array_get(value, 0) : value, c->n_vocab);
    for (size_t i = 1; i < n; i++)
        c->more_eos[c->n_more_eos++] =
            read_token(r, key, json_array_get(value, i), c->n_vocab);
}

bool qwen_config_is_eos(const qwen_config *c, int32_t id)
{
    bool found = id >= 0 && id == c->eos;
    for (uint32_t i = 0; i < c->n_more_eos; i++)
        found = found || id == c->more_eos[i];
    return found;
}

/* As it was read: null, a token, or a list. */
static json_t *describe_eos(const qwen_config *c)
{
    if (c->eos < 0)
        return json_null();
    if (c->n_more_eos == 0)
        return json_integer(c->eos);
    json_t *list = json_pack("[i]", (int)c->eos);
    for (uint32_t i = 0; i < c->n_more_eos; i++)
        json_array_append_new(list, json_integer(c->more_eos[i]));
    return list;
}

static void refuse_what_is_not_computed(reader *r)
{
    if (!json_is_string(json_object_get(r->root, "model_type")))
        refuse(r, DW_CORRUPT, "model_type", "must be \"qwen3\"");
    expect_string(r, r->root, "model_type", "qwen3");
    expect_string(r, r->root, "hidden_act", "silu");
    if (read_bool(r, "attention_bias"))
        refuse(r, DW_UNSUPPORTED, "attention_bias",
               "is set, which this does not compute");
    if (read_bool(r, "use_sliding_window"))
        refuse(r, DW_UNSUPPORTED, "use_sliding_window",
               "is set, which this does not compute");
    const json_t *quantized = json_object_get(r->root, "quantization_config");
    if (quantized != NULL && !json_is_null(quantized))
        refuse(r, DW_UNSUPPORTED, "quantization_config",
               "is there: weights must be BF16");
}

static void read_members(reader *r, qwen_config *c)
{
    refuse_what_is_not_computed(r);
    c->n_vocab = read_count(r, "vocab_size", MAX_VOCAB, 0);
    c->n_hidden = read_count(r, "hidden_size", MAX_WIDTH, 0);
    c->n_inter = read_count(r, "intermediate_size", MAX_WIDTH, 0);
    c->n_layers = read_count(r, "num_hidden_layers", MAX_LAYERS, 0);
    c->n_heads = read_count(r, "num_attention_heads", MAX_HEADS, 0);
    c->n_kv_heads = read_count(r, "num_key_value_heads", MAX_HEADS, 0);
    c->head_dim = read_count(r, "head_dim", 1024, 128);
    c->max_positions = read_count(r, "max_position_embeddings", 1u << 24, 32768);
    c->rope_theta = read_rope_theta(r);
    c->rms_eps = read_positive(r, r->root, "rms_norm_eps", 1e-6f);
    c->tied = read_bool(r, "tie_word_embeddings");
    read_eos(r, c);
    if (r->status != DW_OK)
        return;
    if (c->n_heads % c->n_kv_heads != 0)
        refuse(r, DW_CORRUPT, "num_key_value_heads", "must divide num_attention_heads");
    if (c->head_dim % 2 != 0)
        refuse(r, DW_CORRUPT, "head_dim", "must be even");
}

dw_status qwen_config_read(qwen_config *out, const char *dir, dw_error *err)
{
    char path[WORDLE_PATH_SIZE];
    json_t *root;
    dw_status status = wordle_path_join(path, dir, "config.json", err);
    if (status == DW_OK)
        status = wordle_json_read(&root, path, err);
    if (status != DW_OK)
        return status;
    reader r = {.root = root, .path = path, .err = err, .status = DW_OK};
    read_members(&r, out);
    json_decref(root);
    return r.status;
}

dw_status qwen_config_write(const qwen_config *c, const char *dir, dw_error *err)
{
    char path[WORDLE_PATH_SIZE];
    dw_status status = wordle_path_join(path, dir, "config.json", err);
    if (status != DW_OK)
        return status;
    /* rope_theta for older readers, rope_parameters for newer ones */
    json_t *root = json_pack(
        "{s:[s], s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f,"
        " s:{s:s, s:f}, s:b, s:b, s:o}",
        "architectures", "Qwen3ForCausalLM", "model_type", "qwen3", "hidden_act", "silu",
        "dtype", "bfloat16", "torch_dtype", "bfloat16", "vocab_size", (int)c->n_vocab,
        "hidden_size", (int)c->n_hidden, "intermediate_size", (int)c->n_inter,
        "num_hidden_layers", (int)c->n_layers, "num_attention_heads", (int)c->n_heads,
        "num_key_value_heads", (int)c->n_kv_heads, "head_dim", (int)c->head_dim,
        "max_position_embeddings", (int)c->max_positions, "rms_norm_eps",
        (double)c->rms_eps, "rope_theta", (double)c->rope_theta, "rope_parameters",
        "rope_type", "default", "rope_theta", (double)c->rope_theta, "attention_bias", 0,
        "tie_word_embeddings", (int)c->tied, "eos_token_id", describe_eos(c));
    if (root == NULL)
        return wordle_fail(err, DW_NO_MEMORY, path, "out of memory");
    int failed = json_dump_file(root, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (failed)
        return wordle_fail(err, DW_IO, path, "cannot be written");
    return DW_OK;
}
