/* Reads tokenizer.json, and refuses everything that the encoder does not support. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "json_file.h"
#include "tokenizer_reader.h"

enum { MAX_ADDED = 1 << 14 };

dw_status tokenizer_corrupt(const tokenizer_reader *r, const char *what)
{
    return wordle_fail(r->err, DW_CORRUPT, r->path, "%s", what);
}

static dw_status unsupported(const tokenizer_reader *r, const char *what)
{
    return wordle_fail(r->err, DW_UNSUPPORTED, r->path,
                       "%s: this reads byte-level BPE as Qwen ships it", what);
}

dw_status tokenizer_no_memory(const tokenizer_reader *r)
{
    return wordle_fail(r->err, DW_NO_MEMORY, r->path, "out of memory");
}

static bool has_type(const json_t *object, const char *type)
{
    const char *text = json_string_value(json_object_get(object, "type"));
    return text != NULL && strcmp(text, type) == 0;
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* ---- tokens ---------------------------------------------------------------------------
 */

uint32_t tokenizer_number(const json_t *value)
{
    json_int_t id = json_integer_value(value);
    return json_is_integer(value) && id >= 0 && id < TOKENIZER_MAX_TOKENS ? (uint32_t)id
                                                                          : NO_TOKEN;
}

static uint32_t count_tokens(const json_t *vocab, const json_t *added)
{
    uint32_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value)
    {
        uint32_t id = tokenizer_number(value);
        n = id != NO_TOKEN && id >= n ? id + 1 : n;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        uint32_t id = tokenizer_number(json_object_get(json_array_get(added, i), "id"));
        n = id != NO_TOKEN && id >= n ? id + 1 : n;
    }
    return n;
}

static dw_status read_model(const tokenizer_reader *r, const json_t *model)
{
    if (!has_type(model, "BPE"))
        return unsupported(r, "the model is not BPE");
    static const char *const absent[] = {"dropout", "unk_token"};
    for (size_t i = 0; i < 2; i++)
        if (!is_absent(json_object_get(model, absent[i])))
            return unsupported(r, "the model has dropout or a token for the unknown");
    static const char *const off[] = {"byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < 2; i++)
        if (json_is_true(json_object_get(model, off[i])))
            return unsupported(r, "the model falls back to bytes or ignores merges");
    static const char *const empty[] = {"continuing_subword_prefix",
                                        "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, empty[i]);
        if (!is_absent(value) && json_string_length(value) != 0)
            return unsupported(r, "the model marks parts of words");
    }
    const json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return tokenizer_corrupt(r, "the model has no 'vocab'");
    dw_status status = tokenizer_read_vocab(r, vocab);
    return status != DW_OK
               ? status
               : tokenizer_read_merges(r, json_object_get(model, "merges"), vocab);
}

/* ---- added tokens -------------------------------------------------------------------
 */

static dw_status read_added_token(const tokenizer_reader *r, const json_t *entry)
{
    tokenizer *tok = r->tok;
    const char *content = json_string_value(json_object_get(entry, "content"));
    uint32_t id = tokenizer_number(json_object_get(entry, "id"));
    if (content == NULL || content[0] == '\0' || id == NO_TOKEN)
        return tokenizer_corrupt(r, "an added token must have an 'id' and a 'content'");
    if (json_is_true(json_object_get(entry, "lstrip")) ||
        json_is_true(json_object_get(entry, "rstrip")) ||
        json_is_true(json_object_get(entry, "single_word")))
        return unsupported(r, "an added token takes space around it");
    if (tok->normalizes && json_is_true(json_object_get(entry, "normalized")))
        return unsupported(r, "an added token is to be found in normalized text");
    char *copy = strdup(content);
    if (copy == NULL)
        return tokenizer_no_memory(r);
    free(tok->tokens[id].bytes);
    tok->tokens[id] =
        (token){.bytes = copy,
                .n_bytes = (uint32_t)strlen(copy),
                .is_special = json_is_true(json_object_get(entry, "special"))};
    tok->begins_added[(unsigned char)copy[0]] = true;
    /* longest first, so that the first that fits is the one */
    size_t place = tok->n_added++;
    while (place > 0 &&
           tok->tokens[tok->added[place - 1]].n_bytes < tok->tokens[id].n_bytes) {
        tok->added[place] = tok->added[place - 1];
        place--;
    }
    tok->added[place] = id;
    return DW_OK;
}

static dw_status read_added(const tokenizer_reader *r, const json_t *added)
{
    size_t n = json_array_size(added);
    if (!is_absent(added) && (!json_is_array(added) || n > MAX_ADDED))
        return tokenizer_corrupt(r, "'added_tokens' must be an array of at most 16384");
    r->tok->added = malloc((n + 1) * sizeof *r->tok->added);
    if (r->tok->added == NULL)
        return tokenizer_no_memory(r);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = read_added_token(r, json_array_get(added, i));
    return status;
}

/* ---- what happens to a text before ----------------------------------------------------
 */

static dw_status compile_pattern(const tokenizer_reader *r, const char *pattern)
{
    int code;
    PCRE2_SIZE where;
    r->tok->pattern = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF,
                                    &code, &where, NULL);
    if (r->tok->pattern != NULL)
        return DW_OK;
    char why[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return wordle_fail(r->err, DW_CORRUPT, r->path,
                       "the pattern of the pre-tokenizer, at %zu: %s", (size_t)where,
                       why);
}

static dw_status read_split(const tokenizer_reader *r, const json_t *split)
{
    const json_t *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!json_is_string(pattern) || behavior == NULL ||
        strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(split, "invert")) || r->tok->pattern != NULL)
        return unsupported(r, "the pre-tokenizer does not split by one pattern");
    return compile_pattern(r, json_string_value(pattern));
}

static dw_status read_byte_level(const tokenizer_reader *r, const json_t *byte_level)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                               " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    const json_t *use_regex = json_object_get(byte_level, "use_regex");
    if (json_is_true(json_object_get(byte_level, "add_prefix_space")))
        return unsupported(r, "the pre-tokenizer adds a space");
    if (use_regex != NULL && !json_is_true(use_regex))
        return DW_OK;
    if (r->tok->pattern != NULL)
        return unsupported(r, "the pre-tokenizer splits by two patterns");
    return compile_pattern(r, gpt2);
}

/* A split by pattern or none, then bytes. */
static dw_status read_pre_tokenizer(const tokenizer_reader *r, const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    bool is_sequence = has_type(pre, "Sequence");
    size_t n = is_sequence ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *step = is_sequence ? json_array_get(list, i) : pre;
        if (i + 1 == n && has_type(step, "ByteLevel"))
            return read_byte_level(r, step);
        if (!has_type(step, "Split"))
            break;
        dw_status status = read_split(r, step);
        if (status != DW_OK)
            return status;
    }
    return unsupported(r, "the pre-tokenizer does not end with ByteLevel");
}

static dw_status read_root(const tokenizer_reader *r, const json_t *root)
{
    tokenizer *tok = r->tok;
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *post = json_object_get(root, "post_processor");
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model))
        return tokenizer_corrupt(r, "it has no 'model'");
    if (!is_absent(normalizer) && !has_type(normalizer, "NFC"))
        return unsupported(r, "the normalizer is not NFC");
    if (!is_absent(post) && !has_type(post, "ByteLevel"))
        return unsupported(r, "the post-processor adds tokens");
    tok->normalizes = !is_absent(normalizer);
    tok->n_tokens = count_tokens(json_object_get(model, "vocab"), added);
    tok->tokens = calloc(tok->n_tokens + 1u, sizeof *tok->tokens);
    if (tok->tokens == NULL)
        return tokenizer_no_memory(r);
    dw_status status = read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (status == DW_OK)
        status = read_model(r, model);
    if (status == DW_OK)
        status = read_added(r, added);
    return status;
}

dw_status tokenizer_open(tokenizer **out, const char *dir, dw_error *err)
{
    char path[WORDLE_PATH_SIZE];
    json_t *root;
    dw_status status = wordle_path_join(path, dir, "tokenizer.json", err);
    if (status == DW_OK)
        status = wordle_json_read(&root, path, err);
    if (status != DW_OK)
        return status;
    tokenizer_reader r = {.tok = calloc(1, sizeof(tokenizer)), .path = path, .err = err};
    status = r.tok == NULL ? tokenizer_no_memory(&r) : read_root(&r, root);
    json_decref(root);
    if (status != DW_OK) {
        tokenizer_close(r.tok);
        return status;
    }
    *out = r.tok;
    return DW_OK;
}

void tokenizer_close(tokenizer *tok)
{
    if (tok == NULL)
        return;
    for (uint32_t i = 0; tok->tokens != NULL && i < tok->n_tokens; i++)
        free(tok->tokens[i].bytes);
    pcre2_code_free(tok->pattern);
    free(tok->tokens);
    free(tok->merges);
    free(tok->added);
    free(tok);
}
