/* Reads tokenizer.json, and refuses whatever the encoder would not do as it says. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fail.h"
#include "tokenizer_model.h"

enum { MAX_TOKENS = 1 << 22, MAX_ADDED = 1 << 14, MAX_FILE_MIB = 256 };

typedef struct reader {
    tokenizer *tok;
    const char *path;
    dw_error *err;
} reader;

static dw_status corrupt(const reader *r, const char *what)
{
    return wordle_fail(r->err, DW_CORRUPT, r->path, "%s", what);
}

static dw_status unsupported(const reader *r, const char *what)
{
    return wordle_fail(r->err, DW_UNSUPPORTED, r->path,
                       "%s: this reads byte-level BPE as Qwen ships it", what);
}

static dw_status no_memory(const reader *r)
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

/* ---- the alphabet: each byte as a printable character, as GPT-2 has it --------------
 */

/* Bytes that print stand for themselves, the others for 256, 257, ... in order. */
static uint32_t character_of(unsigned byte)
{
    static const unsigned char gaps[][2] = {{0, 32}, {127, 160}, {173, 173}};
    uint32_t n_before = 0;
    for (size_t i = 0; i < sizeof gaps / sizeof gaps[0]; i++) {
        if (byte < gaps[i][0])
            break;
        if (byte <= gaps[i][1])
            return 256 + n_before + byte - gaps[i][0];
        n_before += 1u + gaps[i][1] - gaps[i][0];
    }
    return byte;
}

typedef struct alphabet {
    short byte_of[512]; /* by character; -1: not of the alphabet */
} alphabet;

static alphabet make_alphabet(void)
{
    alphabet a;
    for (size_t i = 0; i < 512; i++)
        a.byte_of[i] = -1;
    for (unsigned byte = 0; byte < 256; byte++)
        a.byte_of[character_of(byte)] = (short)byte;
    return a;
}

/* The bytes that SPELLING stands for, all of whose characters have at most two bytes in
 * UTF-8. Returns how many, or -1. OUT has room for strlen(spelling). */
static int spell(const alphabet *a, const char *spelling, char *out)
{
    int n = 0;
    for (const unsigned char *s = (const unsigned char *)spelling; *s != 0; s++) {
        unsigned c = *s;
        if (c >= 0xe0)
            return -1;
        if (c >= 0xc0)
            c = (c & 0x1fu) << 6 | (*++s & 0x3fu);
        if (c >= 512 || a->byte_of[c] < 0)
            return -1;
        out[n++] = (char)a->byte_of[c];
    }
    return n;
}

/* ---- tokens -------------------------------------------------------------------------
 */

/* The token's number, or NO_TOKEN where VALUE is none. */
static uint32_t token_number(const json_t *value)
{
    json_int_t id = json_integer_value(value);
    return json_is_integer(value) && id >= 0 && id < MAX_TOKENS ? (uint32_t)id : NO_TOKEN;
}

static uint32_t count_tokens(const json_t *vocab, const json_t *added)
{
    uint32_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value)
    {
        uint32_t id = token_number(value);
        n = id != NO_TOKEN && id >= n ? id + 1 : n;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        uint32_t id = token_number(json_object_get(json_array_get(added, i), "id"));
        n = id != NO_TOKEN && id >= n ? id + 1 : n;
    }
    return n;
}

static dw_status read_vocab(const reader *r, const json_t *vocab)
{
    tokenizer *tok = r->tok;
    alphabet letters = make_alphabet();
    const char *key;
    json_t *value;
    for (size_t i = 0; i < 256; i++)
        tok->of_byte[i] = NO_TOKEN;
    json_object_foreach((json_t *)vocab, key, value)
    {
        uint32_t id = token_number(value);
        if (id == NO_TOKEN || tok->tokens[id].bytes != NULL)
            return corrupt(r, "two tokens of the vocabulary have one number, or one has "
                              "none from 0 to 2^22");
        char *bytes = malloc(strlen(key) + 1);
        if (bytes == NULL)
            return no_memory(r);
        tok->tokens[id].bytes = bytes;
        int n = spell(&letters, key, bytes);
        if (n < 1)
            return wordle_fail(r->err, DW_UNSUPPORTED, r->path,
                               "token %u is not written in the alphabet of bytes", id);
        tok->tokens[id].n_bytes = (uint32_t)n;
        if (n == 1)
            tok->of_byte[(unsigned char)bytes[0]] = id;
    }
    return DW_OK;
}

/* ---- merges -------------------------------------------------------------------------
 */

/* A merge is "left right", or in newer files ["left", "right"]. LEFT and RIGHT point into
 * it or into SCRATCH. */
static bool split_merge(const json_t *entry, char **scratch, const char **left,
                        const char **right)
{
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        *left = json_string_value(json_array_get(entry, 0));
        *right = json_string_value(json_array_get(entry, 1));
        return *left != NULL && *right != NULL;
    }
    const char *text = json_string_value(entry);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    char *copy = space == NULL ? NULL : realloc(*scratch, strlen(text) + 1);
    if (copy == NULL)
        return false;
    *scratch = strcpy(copy, text);
    copy[space - text] = '\0';
    *left = copy;
    *right = copy + (space - text) + 1;
    return true;
}

static void insert_merge(tokenizer *tok, merge m)
{
    size_t place = merge_place(tok, m.left, m.right);
    while (tok->merges[place].left != NO_TOKEN) {
        if (tok->merges[place].left == m.left && tok->merges[place].right == m.right)
            break; /* said twice: the later one counts, as in `tokenizers` */
        place = (place + 1) & (tok->n_places - 1);
    }
    tok->merges[place] = m;
}

/* The number of LEFT and RIGHT joined. */
static uint32_t joined_token(const json_t *vocab, const char *left, const char *right)
{
    size_t n_left = strlen(left), n_right = strlen(right);
    char *joined = malloc(n_left + n_right + 1);
    if (joined == NULL)
        return NO_TOKEN;
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right, n_right + 1);
    uint32_t id = token_number(json_object_get(vocab, joined));
    free(joined);
    return id;
}

static dw_status read_merges(const reader *r, const json_t *merges, const json_t *vocab)
{
    tokenizer *tok = r->tok;
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > MAX_TOKENS)
        return corrupt(r, "'merges' must be an array of at most 2^22");
    if (n == 0)
        return DW_OK;
    for (tok->n_places = 4; tok->n_places < 2 * n;)
        tok->n_places *= 2;
    tok->merges = malloc(tok->n_places * sizeof *tok->merges);
    if (tok->merges == NULL)
        return no_memory(r);
    for (size_t i = 0; i < tok->n_places; i++)
        tok->merges[i].left = NO_TOKEN;
    char *scratch = NULL;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const char *left, *right;
        merge m = {
            .left = NO_TOKEN, .right = NO_TOKEN, .rank = (uint32_t)i, .id = NO_TOKEN};
        if (split_merge(json_array_get(merges, i), &scratch, &left, &right)) {
            m.left = token_number(json_object_get(vocab, left));
            m.right = token_number(json_object_get(vocab, right));
            m.id = joined_token(vocab, left, right);
        }
        if (m.left == NO_TOKEN || m.right == NO_TOKEN || m.id == NO_TOKEN)
            status = wordle_fail(r->err, DW_CORRUPT, r->path,
                                 "merge %zu is not of two tokens that make a third", i);
        else
            insert_merge(tok, m);
    }
    free(scratch);
    return status;
}

static dw_status read_model(const reader *r, const json_t *model)
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
        return corrupt(r, "the model has no 'vocab'");
    dw_status status = read_vocab(r, vocab);
    return status != DW_OK ? status
                           : read_merges(r, json_object_get(model, "merges"), vocab);
}

/* ---- added tokens -------------------------------------------------------------------
 */

static dw_status read_added_token(const reader *r, const json_t *entry)
{
    tokenizer *tok = r->tok;
    const char *content = json_string_value(json_object_get(entry, "content"));
    uint32_t id = token_number(json_object_get(entry, "id"));
    if (content == NULL || content[0] == '\0' || id == NO_TOKEN)
        return corrupt(r, "an added token must have an 'id' and a 'content'");
    if (json_is_true(json_object_get(entry, "lstrip")) ||
        json_is_true(json_object_get(entry, "rstrip")) ||
        json_is_true(json_object_get(entry, "single_word")))
        return unsupported(r, "an added token takes space around it");
    if (tok->normalizes && json_is_true(json_object_get(entry, "normalized")))
        return unsupported(r, "an added token is to be found in normalized text");
    char *copy = strdup(content);
    if (copy == NULL)
        return no_memory(r);
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

static dw_status read_added(const reader *r, const json_t *added)
{
    size_t n = json_array_size(added);
    if (!is_absent(added) && (!json_is_array(added) || n > MAX_ADDED))
        return corrupt(r, "'added_tokens' must be an array of at most 16384");
    r->tok->added = malloc((n + 1) * sizeof *r->tok->added);
    if (r->tok->added == NULL)
        return no_memory(r);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = read_added_token(r, json_array_get(added, i));
    return status;
}

/* ---- what happens to a text before ----------------------------------------------------
 */

static dw_status compile_pattern(const reader *r, const char *pattern)
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

static dw_status read_split(const reader *r, const json_t *split)
{
    const json_t *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!json_is_string(pattern) || behavior == NULL ||
        strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(split, "invert")) || r->tok->pattern != NULL)
        return unsupported(r, "the pre-tokenizer does not split by one pattern");
    return compile_pattern(r, json_string_value(pattern));
}

static dw_status read_byte_level(const reader *r, const json_t *byte_level)
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
static dw_status read_pre_tokenizer(const reader *r, const json_t *pre)
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

static dw_status read_root(const reader *r, const json_t *root)
{
    tokenizer *tok = r->tok;
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *post = json_object_get(root, "post_processor");
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model))
        return corrupt(r, "it has no 'model'");
    if (!is_absent(normalizer) && !has_type(normalizer, "NFC"))
        return unsupported(r, "the normalizer is not NFC");
    if (!is_absent(post) && !has_type(post, "ByteLevel"))
        return unsupported(r, "the post-processor adds tokens");
    tok->normalizes = !is_absent(normalizer);
    tok->n_tokens = count_tokens(json_object_get(model, "vocab"), added);
    tok->tokens = calloc(tok->n_tokens + 1u, sizeof *tok->tokens);
    if (tok->tokens == NULL)
        return no_memory(r);
    dw_status status = read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (status == DW_OK)
        status = read_model(r, model);
    if (status == DW_OK)
        status = read_added(r, added);
    return status;
}

dw_status tokenizer_open(tokenizer **out, const char *dir, dw_error *err)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= sizeof path)
        return wordle_fail(err, DW_INVALID, dir, "the path is too long");
    struct stat info;
    if (stat(path, &info) == 0 && info.st_size > (off_t)MAX_FILE_MIB << 20)
        return wordle_fail(err, DW_UNSUPPORTED, path, "is larger than %d MiB",
                           MAX_FILE_MIB);
    json_error_t trouble;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &trouble);
    if (root == NULL) {
        bool missing = json_error_code(&trouble) == json_error_cannot_open_file;
        return wordle_fail(err, missing ? DW_NOT_FOUND : DW_CORRUPT, path, "%s (line %d)",
                           trouble.text, trouble.line);
    }
    reader r = {.tok = calloc(1, sizeof(tokenizer)), .path = path, .err = err};
    dw_status status = r.tok == NULL ? no_memory(&r) : read_root(&r, root);
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
