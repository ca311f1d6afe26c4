/* Encoding: the text is cut at added tokens, normalized, cut into pieces by the pattern,
 * and the bytes of each piece are merged, best rank first. Merges wait in a heap, so that
 * any piece of n bytes takes n log n steps. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer_model.h"

/* A token of the piece at hand, in a list: of its neighbours, NO_TOKEN is none. */
typedef struct symbol {
    uint32_t id; /* NO_TOKEN: merged into the one before it */
    uint32_t before, after;
} symbol;

/* A merge of symbol AT with the one after it, that was possible once. */
typedef struct candidate {
    uint32_t rank, at, id;
} candidate;

typedef struct encoder {
    const tokenizer *tok;
    int32_t *ids;
    size_t max, n;
    symbol *symbols;
    candidate *heap;
    size_t n_heap;
    size_t room; /* bytes of a piece that both have room for */
    pcre2_match_data *match;
} encoder;

static void emit(encoder *e, uint32_t id)
{
    if (e->n < e->max)
        e->ids[e->n] = (int32_t)id;
    e->n++;
}

/* ---- the heap: lowest rank first, then leftmost ---------------------------------------
 */

static bool is_before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(encoder *e, candidate c)
{
    size_t i = e->n_heap++;
    for (; i > 0 && is_before(c, e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
}

static candidate heap_pop(encoder *e)
{
    candidate top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < e->n_heap && is_before(e->heap[child + 1], e->heap[child]))
            child++;
        if (child >= e->n_heap || !is_before(e->heap[child], last))
            break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

/* ---- merging --------------------------------------------------------------------------
 */

static const merge *find_merge(const tokenizer *tok, uint32_t left, uint32_t right)
{
    for (size_t place = merge_place(tok, left, right);;
         place = (place + 1) & (tok->n_places - 1)) {
        const merge *m = &tok->merges[place];
        if (m->left == left && m->right == right)
            return m;
        if (m->left == NO_TOKEN)
            return NULL;
    }
}

/* Whether symbol AT and the one after it can be merged now. */
static const merge *merge_at(const encoder *e, uint32_t at)
{
    if (at == NO_TOKEN || e->symbols[at].id == NO_TOKEN ||
        e->symbols[at].after == NO_TOKEN)
        return NULL;
    return find_merge(e->tok, e->symbols[at].id, e->symbols[e->symbols[at].after].id);
}

static void offer(encoder *e, uint32_t at)
{
    const merge *m = merge_at(e, at);
    if (m != NULL)
        heap_push(e, (candidate){.rank = m->rank, .at = at, .id = m->id});
}

static bool make_room(encoder *e, size_t n_bytes)
{
    if (n_bytes <= e->room)
        return true;
    size_t room = n_bytes < 64 ? 64 : 2 * n_bytes;
    symbol *symbols = realloc(e->symbols, room * sizeof *symbols);
    if (symbols == NULL)
        return false;
    e->symbols = symbols;
    /* each pair at first, and two more for each of at most n merges */
    candidate *heap = realloc(e->heap, 3 * room * sizeof *heap);
    if (heap == NULL)
        return false;
    e->heap = heap;
    e->room = room;
    return true;
}

static void merge_symbols(encoder *e, uint32_t n)
{
    e->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        offer(e, i);
    while (e->n_heap > 0) {
        candidate c = heap_pop(e);
        const merge *m = merge_at(e, c.at);
        if (m == NULL || m->id != c.id) /* one of the two has been merged since */
            continue;
        symbol *left = &e->symbols[c.at], *right = &e->symbols[left->after];
        left->id = m->id;
        left->after = right->after;
        right->id = NO_TOKEN;
        if (left->after != NO_TOKEN)
            e->symbols[left->after].before = c.at;
        offer(e, left->before);
        offer(e, c.at);
    }
}

static bool encode_piece(encoder *e, const unsigned char *bytes, size_t n_bytes)
{
    if (n_bytes >= NO_TOKEN || !make_room(e, n_bytes))
        return false;
    uint32_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t id = e->tok->of_byte[bytes[i]];
        if (id == NO_TOKEN)
            continue;
        e->symbols[n] = (symbol){.id = id, .before = n - 1, .after = n + 1};
        n++; /* before of the first is NO_TOKEN, which is -1 */
    }
    if (n == 0)
        return true;
    e->symbols[n - 1].after = NO_TOKEN;
    if (e->tok->merges != NULL)
        merge_symbols(e, n);
    for (uint32_t i = 0; i != NO_TOKEN; i = e->symbols[i].after)
        emit(e, e->symbols[i].id);
    return true;
}

/* ---- pieces ---------------------------------------------------------------------------
 */

/* Matches of the pattern, and the text between them. */
static bool encode_pieces(encoder *e, const unsigned char *text, size_t n_bytes)
{
    if (e->tok->pattern == NULL)
        return encode_piece(e, text, n_bytes);
    size_t done = 0, from = 0;
    while (from < n_bytes) {
        int found = pcre2_match(e->tok->pattern, text, n_bytes, from, 0, e->match, NULL);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return false;
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
        size_t first = range[0], last = range[1];
        if (last <=
            first) { /* an empty match is no cut: search on after this character */
            for (from = last + 1; from < n_bytes && (text[from] & 0xc0) == 0x80;)
                from++;
            continue;
        }
        if ((first > done && !encode_piece(e, text + done, first - done)) ||
            !encode_piece(e, text + first, last - first))
            return false;
        done = from = last;
    }
    return done == n_bytes || encode_piece(e, text + done, n_bytes - done);
}

/* Text without added tokens. */
static bool encode_plain(encoder *e, const char *text, size_t n_bytes)
{
    bool is_ascii = true;
    for (size_t i = 0; i < n_bytes && is_ascii; i++)
        is_ascii = (text[i] & 0x80) == 0;
    utf8proc_uint8_t *normal = NULL;
    if (e->tok->normalizes && !is_ascii) {
        utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes,
                         &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n == UTF8PROC_ERROR_NOMEM)
            return false;
        if (n >= 0) { /* invalid UTF-8 stays as it is */
            bool whole = encode_pieces(e, normal, (size_t)n);
            free(normal);
            return whole;
        }
    }
    return encode_pieces(e, (const unsigned char *)text, n_bytes);
}

/* The added token that TEXT begins with, or NO_TOKEN. */
static uint32_t added_at(const tokenizer *tok, const char *text, size_t n_bytes)
{
    if (!tok->begins_added[(unsigned char)text[0]])
        return NO_TOKEN;
    for (size_t i = 0; i < tok->n_added; i++) {
        const token *t = &tok->tokens[tok->added[i]];
        if (t->n_bytes <= n_bytes && memcmp(t->bytes, text, t->n_bytes) == 0)
            return tok->added[i];
    }
    return NO_TOKEN;
}

static bool encode_text(encoder *e, const char *text, size_t n_bytes)
{
    size_t done = 0;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t id = added_at(e->tok, text + i, n_bytes - i);
        if (id == NO_TOKEN) {
            i++;
            continue;
        }
        if (i > done && !encode_plain(e, text + done, i - done))
            return false;
        emit(e, id);
        i += e->tok->tokens[id].n_bytes;
        done = i;
    }
    return done == n_bytes || encode_plain(e, text + done, n_bytes - done);
}

size_t tokenizer_encode(const tokenizer *tok, const char *text, size_t n_bytes,
                        int32_t *ids, size_t max)
{
    encoder e = {.tok = tok, .ids = ids, .max = max};
    e.match = tok->pattern == NULL
                  ? NULL
                  : pcre2_match_data_create_from_pattern(tok->pattern, NULL);
    bool whole =
        (tok->pattern == NULL || e.match != NULL) && encode_text(&e, text, n_bytes);
    pcre2_match_data_free(e.match);
    free(e.symbols);
    free(e.heap);
    return whole ? e.n : SIZE_MAX;
}

/* ---- decoding -------------------------------------------------------------------------
 */

static const token *token_of(const tokenizer *tok, int32_t id)
{
    if (id < 0 || (uint32_t)id >= tok->n_tokens || tok->tokens[id].bytes == NULL)
        return NULL;
    return &tok->tokens[id];
}

size_t tokenizer_decode(const tokenizer *tok, const int32_t *ids, size_t n, char *text,
                        size_t max)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const token *t = token_of(tok, ids[i]);
        if (t == NULL)
            continue;
        if (n_bytes < max) {
            size_t room = max - n_bytes;
            memcpy(text + n_bytes, t->bytes, t->n_bytes < room ? t->n_bytes : room);
        }
        n_bytes += t->n_bytes;
    }
    return n_bytes;
}

uint32_t tokenizer_size(const tokenizer *tok)
{
    return tok->n_tokens;
}

int32_t tokenizer_added(const tokenizer *tok, const char *content)
{
    size_t n_bytes = strlen(content);
    for (size_t i = 0; i < tok->n_added; i++) {
        const token *t = &tok->tokens[tok->added[i]];
        if (t->n_bytes == n_bytes && memcmp(t->bytes, content, n_bytes) == 0)
            return (int32_t)tok->added[i];
    }
    return -1;
}

bool tokenizer_is_special(const tokenizer *tok, int32_t id)
{
    const token *t = token_of(tok, id);
    return t != NULL && t->is_special;
}
