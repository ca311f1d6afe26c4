/* The vocabulary, whose bytes are written as printable characters, and the merges. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "tokenizer_reader.h"

/* ---- the alphabet: each byte as a printable character, as GPT-2 has it --------------
 */

/* Printable bytes are themselves, the others are 256, 257, ... in order. */
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

dw_status tokenizer_read_vocab(const tokenizer_reader *r, const json_t *vocab)
{
    tokenizer *tok = r->tok;
    alphabet letters = make_alphabet();
    const char *key;
    json_t *value;
    for (size_t i = 0; i < 256; i++)
        tok->of_byte[i] = NO_TOKEN;
    json_object_foreach((json_t *)vocab, key, value)
    {
        uint32_t id = tokenizer_number(value);
        if (id == NO_TOKEN || tok->tokens[id].bytes != NULL)
            return tokenizer_corrupt(
                r, "two tokens of the vocabulary have one number, or one has "
                   "none from 0 to 2^22");
        char *bytes = malloc(strlen(key) + 1);
        if (bytes == NULL)
            return tokenizer_no_memory(r);
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
            break; /* given twice: the later one counts, as in `tokenizers` */
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
    uint32_t id = tokenizer_number(json_object_get(vocab, joined));
    free(joined);
    return id;
}

dw_status tokenizer_read_merges(const tokenizer_reader *r, const json_t *merges,
                                const json_t *vocab)
{
    tokenizer *tok = r->tok;
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > TOKENIZER_MAX_TOKENS)
        return tokenizer_corrupt(r, "'merges' must be an array of at most 2^22");
    if (n == 0)
        return DW_OK;
    for (tok->n_places = 4; tok->n_places < 2 * n;)
        tok->n_places *= 2;
    tok->merges = malloc(tok->n_places * sizeof *tok->merges);
    if (tok->merges == NULL)
        return tokenizer_no_memory(r);
    for (size_t i = 0; i < tok->n_places; i++)
        tok->merges[i].left = NO_TOKEN;
    char *scratch = NULL;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const char *left, *right;
        merge m = {
            .left = NO_TOKEN, .right = NO_TOKEN, .rank = (uint32_t)i, .id = NO_TOKEN};
        if (split_merge(json_array_get(merges, i), &scratch, &left, &right)) {
            m.left = tokenizer_number(json_object_get(vocab, left));
            m.right = tokenizer_number(json_object_get(vocab, right));
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
