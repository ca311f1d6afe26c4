#include "init_model.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "qwen.h"

enum { N_VOCAB = 100, FIRST_CHAR = ' ', LAST_CHAR = '~', MAX_PATH_BYTES = 4096 };

#define END_OF_TEXT "<|endoftext|>"

/* The pattern by which Qwen's tokenizers cut text. Without merges it has no effect, but
 * readers of such files expect it. */
static const char pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The vocabulary of byte-level BPE writes a byte as a visible character. */
static void spell(char out[4], int byte)
{
    if (byte == ' ')
        strcpy(out, "\xc4\xa0");
    else if (byte == '\n')
        strcpy(out, "\xc4\x8a");
    else
        snprintf(out, 4, "%c", byte);
}

static json_t *vocabulary(int *n)
{
    json_t *vocab = json_object();
    char text[4];
    *n = 0;
    spell(text, '\n');
    json_object_set_new(vocab, text, json_integer((*n)++));
    for (int byte = FIRST_CHAR; byte <= LAST_CHAR; byte++) {
        spell(text, byte);
        json_object_set_new(vocab, text, json_integer((*n)++));
    }
    return vocab;
}

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 0, "use_regex", 0);
}

static json_t *tokenizer_file(int *eos)
{
    json_t *vocab = vocabulary(eos);
    json_t *end = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", *eos, "content",
                            END_OF_TEXT, "single_word", 0, "lstrip", 0, "rstrip", 0,
                            "normalized", 0, "special", 1);
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                              "Regex", pattern, "behavior", "Isolated", "invert", 0);
    json_t *model = json_pack(
        "{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix", "",
        "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges");
    return json_pack("{s:s, s:n, s:n, s:[o], s:{s:s}, s:{s:s, s:[o, o]}, s:o, s:o, s:o}",
                     "version", "1.0", "truncation", "padding", "added_tokens", end,
                     "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence",
                     "pretokenizers", split, byte_level(), "post_processor", byte_level(),
                     "decoder", byte_level(), "model", model);
}

static dw_status save(const char *dir, const char *name, json_t *object, dw_error *err)
{
    char path[MAX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    bool saved = object && json_dump_file(object, path, JSON_INDENT(1)) == 0;
    json_decref(object);
    return saved ? DW_OK : wordle_fail(err, DW_IO, path, "cannot be written");
}

static dw_status save_weights(const char *dir, const qwen_config *config, uint64_t seed,
                              dw_error *err)
{
    char path[MAX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    qwen_trainer *trainer = NULL;
    dw_status status = qwen_trainer_new(&trainer, config, 1, err);
    if (status == DW_OK) {
        static const dw_pair format = {"format", "pt"};
        const dw_checkpoint_write_options options = {
            .struct_bytes = sizeof options, .metadata = &format, .n_metadata = 1};
        size_t n;
        qwen_trainer_init(trainer, seed);
        const dw_tensor *weights = qwen_trainer_weights(trainer, &n);
        status = dw_checkpoint_write(path, weights, n, &options, err);
    }
    qwen_trainer_free(trainer);
    return status;
}

dw_status init_model(const char *dir, unsigned n_hidden, unsigned n_layers, uint64_t seed,
                     dw_error *err)
{
    int eos = 0;
    char path[MAX_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/tokenizer_config.json", dir) >= (int)sizeof path)
        return wordle_fail(err, DW_INVALID, dir, "is too long a path");
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return wordle_fail(err, DW_IO, dir, "cannot be made: %s", strerror(errno));
    if (access(path, F_OK) == 0)
        return wordle_fail(err, DW_CONFLICT, dir, "holds a model already");
    dw_status status = save(dir, "tokenizer.json", tokenizer_file(&eos), err);
    const qwen_config config = {
        .n_vocab = N_VOCAB,
        .n_hidden = n_hidden,
        .n_inter = 3 * n_hidden,
        .n_layers = n_layers,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = n_hidden / 4,
        .max_positions = 256,
        .rope_theta = 10000,
        .rms_eps = 1e-6f,
        .tied = true,
        .eos = eos,
    };
    if (status == DW_OK)
        status = save(dir, "tokenizer_config.json",
                      json_pack("{s:s, s:s, s:s, s:i, s:b}", "tokenizer_class",
                                "PreTrainedTokenizerFast", "eos_token", END_OF_TEXT,
                                "pad_token", END_OF_TEXT, "model_max_length", 256,
                                "clean_up_tokenization_spaces", 0),
                      err);
    if (status == DW_OK)
        status = save_weights(dir, &config, seed, err);
    return status == DW_OK ? qwen_config_write(&config, dir, err) : status;
}
