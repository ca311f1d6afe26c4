#include "base/json_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

/* A node: kind (3 bits) | nodes of the value, itself included (29) | distance in bytes
 * from the node to its text (32). A key is a string node, and its value follows it. */
enum kind { NULL_, BOOL, INTEGER, REAL, STRING, ARRAY, OBJECT };
#define COUNT_AT    3
#define DISTANCE_AT 32

#define FREE_NODES  (8u << 20) /* allowed for a text of any size */
#define FEW_MEMBERS 8          /* these are compared pair by pair */

typedef struct parser {
    const char *text; /* the caller's, or the tree's copy of it */
    size_t n_text;
    size_t at;
    unsigned depth;
    bool python;    /* takes the numbers that Python's json module writes */
    dw_json *nodes; /* NULL: nothing is built, values are only counted */
    char *copy;     /* if set, it is TEXT, and writable */
    size_t n_total; /* nodes of the whole tree */
    size_t n_nodes; /* so far */
    size_t n_units; /* nodes, and one more for each member, for sorting */
    size_t max_units;
    const char *fault;
    bool no_memory;
} parser;

static bool fail(parser *p, const char *fault)
{
    if (!p->fault)
        p->fault = fault;
    return false;
}

/* ---- nodes ---- */

static enum kind kind_of(const dw_json *v)
{
    return (enum kind)(v->bits & 7);
}

static size_t count_of(const dw_json *v)
{
    return (size_t)(v->bits >> COUNT_AT & ((1u << 29) - 1));
}

static const char *text_of(const dw_json *v)
{
    return (const char *)v + (v->bits >> DISTANCE_AT);
}

/* Adds a node for the text at OFFSET. */
static bool add_node(parser *p, enum kind kind, size_t offset)
{
    if (++p->n_units > p->max_units)
        return fail(p, "it has too many values for its size");
    if (p->nodes) {
        uint64_t distance = (p->n_total - p->n_nodes) * sizeof(dw_json) + offset;
        p->nodes[p->n_nodes].bits =
            distance << DISTANCE_AT | 1u << COUNT_AT | (unsigned)kind;
    }
    p->n_nodes++;
    return true;
}

/* Makes all nodes that were added since NODE part of it. */
static void close_node(parser *p, size_t node)
{
    if (p->nodes)
        p->nodes[node].bits += (uint64_t)(p->n_nodes - node - 1) << COUNT_AT;
}

/* ---- characters ---- */

/* The next character; NUL at the end, which no rule accepts. */
static char peek(const parser *p)
{
    return p->at < p->n_text ? p->text[p->at] : '\0';
}

static char peek_token(parser *p)
{
    char c = peek(p);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        p->at++;
        c = peek(p);
    }
    return c;
}

static size_t skip_digits(parser *p)
{
    size_t from = p->at;
    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at - from;
}

/* ---- strings ---- */

static bool read_hex(parser *p, unsigned *out)
{
    *out = 0;
    for (unsigned i = 0; i < 4; i++, p->at++) {
        int digit = dw_hex_digit(peek(p));
        if (digit < 0)
            return fail(p, "an escape \\u without four hexadecimal digits");
        *out = *out << 4 | (unsigned)digit;
    }
    return true;
}

static size_t encode_utf8(char out[4], unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    static const unsigned lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[n] | c);
    return n;
}

/* The character behind `\u`, or behind two of them. */
static bool read_unicode(parser *p, unsigned *out)
{
    if (!read_hex(p, out))
        return false;
    if (*out == 0)
        return fail(p, "a NUL in a string");
    if (*out < 0xd800 || *out > 0xdfff)
        return true;
    unsigned low = 0;
    bool paired = *out < 0xdc00 && p->n_text - p->at >= 2 && p->text[p->at] == '\\' &&
                  p->text[p->at + 1] == 'u';
    if (paired) {
        p->at += 2;
        if (!read_hex(p, &low))
            return false;
    }
    if (low < 0xdc00 || low > 0xdfff)
        return fail(p, "half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* Decodes one escape, which begins behind the backslash. */
static bool read_escape(parser *p, char out[4], size_t *n)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = peek(p);
    const char *found = c ? strchr(letters, c) : NULL;
    p->at++;
    *n = 1;
    if (found) {
        out[0] = values[found - letters];
        return true;
    }
    unsigned code;
    if (c != 'u')
        return fail(p, "an unknown escape");
    if (!read_unicode(p, &code))
        return false;
    *n = encode_utf8(out, code);
    return true;
}

/* The bytes of the character here, beyond ASCII; 0 if it is not UTF-8. */
static size_t character_bytes(const parser *p)
{
    char window[5] = {0}; /* the text has no NUL behind it */
    size_t left = p->n_text - p->at;
    memcpy(window, p->text + p->at, left < 4 ? left : 4);
    return dw_utf8_bytes(window);
}

/* Decodes a string in the copy, which never makes it longer. */
static bool parse_string(parser *p)
{
    size_t to = ++p->at;
    if (!add_node(p, STRING, to))
        return false;
    for (;;) {
        unsigned char c = (unsigned char)peek(p);
        char decoded[4];
        size_t n = 1;
        if (c == '"')
            break;
        if (c < 0x20)
            return fail(p, p->at < p->n_text ? "a control character in a string"
                                             : "the text ends in a string");
        if (c == '\\') {
            p->at++;
            if (!read_escape(p, decoded, &n))
                return false;
            if (p->copy)
                memcpy(p->copy + to, decoded, n);
        } else {
            n = c < 0x80 ? 1 : character_bytes(p);
            if (n == 0)
                return fail(p, "a string is not UTF-8");
            if (p->copy)
                memmove(p->copy + to, p->text + p->at, n);
            p->at += n;
        }
        to += n;
    }
    if (p->copy)
        p->copy[to] = '\0';
    p->at++;
    return true;
}

/* ---- numbers and words ---- */

static bool fits_integer(const char *digits, size_t n, bool negative)
{
    int64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        int digit = digits[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return false;
    }
    return true;
}

static bool parse_number(parser *p)
{
    const size_t start = p->at;
    enum kind kind = INTEGER;
    bool negative = peek(p) == '-';
    p->at += negative;
    const char *digits = p->text + p->at;
    size_t n = skip_digits(p);
    if (n == 0 || (digits[0] == '0' && n > 1))
        return fail(p, "a number is not valid JSON");
    if (peek(p) == '.') {
        kind = REAL;
        p->at++;
        if (skip_digits(p) == 0)
            return fail(p, "a number is not valid JSON");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        kind = REAL;
        p->at++;
        p->at += peek(p) == '+' || peek(p) == '-';
        if (skip_digits(p) == 0)
            return fail(p, "a number is not valid JSON");
    }
    if (kind == INTEGER && !fits_integer(digits, n, negative)) {
        if (!p->python)
            return fail(p, "an integer beyond 64 bits");
        kind = REAL;
    }
    return add_node(p, kind, start);
}

static bool parse_word(parser *p)
{
    static const struct {
        const char *text;
        enum kind kind;
    } words[] = {{"null", NULL_}, {"true", BOOL},     {"false", BOOL},
                 {"NaN", REAL},   {"Infinity", REAL}, {"-Infinity", REAL}};
    const size_t n_words = p->python ? 6 : 3;
    for (size_t i = 0; i < n_words; i++) {
        size_t n = strlen(words[i].text);
        if (p->n_text - p->at >= n && memcmp(p->text + p->at, words[i].text, n) == 0) {
            p->at += n;
            return add_node(p, words[i].kind, p->at - n);
        }
    }
    return fail(p, "a value is expected");
}

/* ---- containers ---- */

static bool parse_value(parser *p);

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool has_same_keys(parser *p, const dw_json *object, size_t n)
{
    const char **keys = dw_alloc_array(n, sizeof *keys);
    if (!keys) {
        p->no_memory = true;
        return true;
    }
    size_t i = 0;
    for (const dw_json *k = dw_json_first(object); k; k = dw_json_next(object, k))
        keys[i++] = text_of(k);
    qsort(keys, n, sizeof *keys, compare_texts);
    bool same = false;
    for (i = 1; i < n && !same; i++)
        same = strcmp(keys[i - 1], keys[i]) == 0;
    dw_free(keys);
    return same;
}

static bool has_same_few_keys(const dw_json *object)
{
    for (const dw_json *k = dw_json_first(object); k; k = dw_json_next(object, k))
        for (const dw_json *o = dw_json_first(object); o != k;
             o = dw_json_next(object, o))
            if (strcmp(text_of(k), text_of(o)) == 0)
                return true;
    return false;
}

static bool are_ascending(const dw_json *object)
{
    const dw_json *last = NULL;
    for (const dw_json *k = dw_json_first(object); k; k = dw_json_next(object, k)) {
        if (last && strcmp(text_of(last), text_of(k)) >= 0)
            return false;
        last = k;
    }
    return true;
}

/* The object is complete. */
static bool check_keys(parser *p, const dw_json *object, size_t n)
{
    bool same = n <= FEW_MEMBERS ? has_same_few_keys(object)
                                 : !are_ascending(object) && has_same_keys(p, object, n);
    return !same || fail(p, "an object has a key twice");
}

static bool parse_member(parser *p)
{
    if (peek_token(p) != '"')
        return fail(p, "a key is expected");
    if (++p->n_units > p->max_units)
        return fail(p, "it has too many values for its size");
    if (!parse_string(p))
        return false;
    if (peek_token(p) != ':')
        return fail(p, "a ':' is expected");
    p->at++;
    return parse_value(p);
}

static bool parse_container(parser *p, enum kind kind)
{
    const char end = kind == OBJECT ? '}' : ']';
    const size_t node = p->n_nodes;
    size_t n = 0;
    if (!add_node(p, kind, p->at++))
        return false;
    if (++p->depth > DW_JSON_MAX_DEPTH)
        return fail(p, "it is nested too deeply");
    while (n > 0 || peek_token(p) != end) {
        if (!(kind == OBJECT ? parse_member(p) : parse_value(p)))
            return false;
        n++;
        char c = peek_token(p);
        if (c == end)
            break;
        if (c != ',')
            return fail(p, kind == OBJECT ? "a ',' or '}' is expected"
                                          : "a ',' or ']' is expected");
        p->at++;
    }
    p->at++;
    p->depth--;
    close_node(p, node);
    return kind == ARRAY || !p->nodes || check_keys(p, &p->nodes[node], n);
}

static bool is_minus_infinity(const parser *p)
{
    return p->python && p->n_text - p->at >= 2 && p->text[p->at + 1] == 'I';
}

static bool parse_value(parser *p)
{
    char c = peek_token(p);
    if (c == '{' || c == '[')
        return parse_container(p, c == '{' ? OBJECT : ARRAY);
    if (c == '"')
        return parse_string(p);
    const bool is_number = (c >= '0' && c <= '9') || (c == '-' && !is_minus_infinity(p));
    return is_number ? parse_number(p) : parse_word(p);
}

/* ---- documents ---- */

static bool parse_document(parser *p)
{
    if (!parse_value(p))
        return false;
    peek_token(p);
    return p->at == p->n_text || fail(p, "there is text behind the value");
}

static dw_status fail_parse(const parser *p, const char *subject, const char *path,
                            dw_error *err)
{
    if (p->no_memory)
        return dw_fail_memory(err, path);
    return dw_fail(err, DW_CORRUPT, path, "the %s is not strict JSON: %s (byte %zu)",
                   subject, p->fault, p->at);
}

/* Checks TEXT, except for duplicate keys, and counts its nodes. */
static dw_status count(size_t *n_nodes, const void *text, size_t n_bytes, bool any,
                       bool python, size_t max_units, const char *subject,
                       const char *path, dw_error *err)
{
    parser p = {
        .text = text, .n_text = n_bytes, .python = python, .max_units = max_units};
    if (n_bytes > DW_JSON_MAX_BYTES)
        return dw_fail(err, DW_CORRUPT, path,
                       "the %s has %zu bytes, over the limit of %u", subject, n_bytes,
                       DW_JSON_MAX_BYTES);
    if (!any && peek_token(&p) != '{')
        return dw_fail(err, DW_CORRUPT, path, "the %s is not a JSON object", subject);
    if (!parse_document(&p))
        return fail_parse(&p, subject, path, err);
    *n_nodes = p.n_nodes;
    return DW_OK;
}

static dw_status read_tree(dw_json **out, const void *text, size_t n_bytes, bool any,
                           bool python, const char *subject, const char *path,
                           dw_error *err)
{
    const size_t max_units = FREE_NODES + n_bytes / 4;
    size_t n_nodes = 0;
    *out = NULL;
    dw_status status =
        count(&n_nodes, text, n_bytes, any, python, max_units, subject, path, err);
    if (status != DW_OK)
        return status;
    dw_json *nodes = dw_alloc(n_nodes * sizeof *nodes + n_bytes + 1);
    if (!nodes)
        return dw_fail_memory(err, path);
    char *copy = (char *)(nodes + n_nodes);
    memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    parser p = {.text = copy,
                .n_text = n_bytes,
                .python = python,
                .nodes = nodes,
                .copy = copy,
                .n_total = n_nodes,
                .max_units = max_units};
    if (parse_document(&p)) {
        *out = nodes;
        return DW_OK;
    }
    dw_free(nodes);
    return fail_parse(&p, subject, path, err);
}

dw_status dw_json_read(dw_json **out, const void *text, size_t n_bytes,
                       const char *subject, const char *path, dw_error *err)
{
    return read_tree(out, text, n_bytes, false, false, subject, path, err);
}

dw_status dw_json_read_python(dw_json **out, const void *text, size_t n_bytes,
                              const char *subject, const char *path, dw_error *err)
{
    return read_tree(out, text, n_bytes, false, true, subject, path, err);
}

dw_status dw_json_read_any(dw_json **out, const void *text, size_t n_bytes,
                           const char *subject, const char *path, dw_error *err)
{
    return read_tree(out, text, n_bytes, true, false, subject, path, err);
}

void dw_json_free(dw_json *root)
{
    dw_free(root);
}

/* ---- values ---- */

bool dw_json_is_object(const dw_json *value)
{
    return value && kind_of(value) == OBJECT;
}

bool dw_json_is_array(const dw_json *value)
{
    return value && kind_of(value) == ARRAY;
}

bool dw_json_is_null(const dw_json *value)
{
    return value && kind_of(value) == NULL_;
}

const char *dw_json_string(const dw_json *value)
{
    return value && kind_of(value) == STRING ? text_of(value) : NULL;
}

bool dw_json_bool(const dw_json *value, bool *out)
{
    if (!value || kind_of(value) != BOOL)
        return false;
    *out = *text_of(value) == 't';
    return true;
}

bool dw_json_integer(const dw_json *value, int64_t *out)
{
    if (!value || kind_of(value) != INTEGER)
        return false;
    *out = strtoll(text_of(value), NULL, 10); /* checked before: it fits */
    return true;
}

bool dw_json_unsigned(const dw_json *value, uint64_t *out)
{
    int64_t number;
    if (!dw_json_integer(value, &number) || number < 0)
        return false;
    *out = (uint64_t)number;
    return true;
}

const dw_json *dw_json_first(const dw_json *container)
{
    bool is_container = dw_json_is_array(container) || dw_json_is_object(container);
    return is_container && count_of(container) > 1 ? container + 1 : NULL;
}

const dw_json *dw_json_value(const dw_json *key)
{
    return key ? key + 1 : NULL;
}

const dw_json *dw_json_next(const dw_json *container, const dw_json *item)
{
    const dw_json *value = kind_of(container) == OBJECT ? item + 1 : item;
    const dw_json *next = value + count_of(value);
    return next < container + count_of(container) ? next : NULL;
}

size_t dw_json_size(const dw_json *container)
{
    size_t n = 0;
    for (const dw_json *it = dw_json_first(container); it;
         it = dw_json_next(container, it))
        n++;
    return n;
}

const dw_json *dw_json_get(const dw_json *object, const char *name)
{
    if (!dw_json_is_object(object))
        return NULL;
    for (const dw_json *k = dw_json_first(object); k; k = dw_json_next(object, k))
        if (strcmp(text_of(k), name) == 0)
            return dw_json_value(k);
    return NULL;
}
