#include "store/s3_xml.h"

#include <expat.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"

/* ---- documents: elements with text in them ---- */

/* The depth of the deepest element that is used; deeper ones are ignored. */
#define MAX_LEVELS 4
#define MAX_DEPTH  64
/* A key of the maximum length with each byte as %XX. */
#define MAX_TEXT (3 * DW_S3_KEY_BYTES)

typedef struct document document;

struct document {
    const char *root; /* the name of the root element */
    /* Called when an element begins or ends, with its TEXT. LEVEL counts the root as 0.
     * May reject the document. */
    void (*begin)(document *d, unsigned level, const char *name);
    void (*end)(document *d, unsigned level, const char *name);
    void *context;
    const char *where;
    dw_error *err;

    XML_Parser parser;
    dw_status status;
    bool root_seen;
    unsigned depth;
    char names[MAX_LEVELS][32]; /* of the open elements */
    char text[MAX_TEXT + 1];    /* of the innermost element so far */
    size_t n_text;
    bool text_cut;
};

static void *xml_allocate(size_t n_bytes)
{
    return dw_alloc(n_bytes);
}

static void *xml_reallocate(void *pointer, size_t n_bytes)
{
    return dw_realloc_array(pointer, n_bytes, 1);
}

static void stop(document *d, dw_status status)
{
    if (d->status == DW_OK)
        d->status = status;
    XML_StopParser(d->parser, XML_FALSE);
}

static void stop_corrupt(document *d, const char *fault)
{
    stop(d, dw_fail(d->err, DW_CORRUPT, d->where, "the server's XML %s", fault));
}

static void on_doctype(void *user, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_subset)
{
    (void)name, (void)system_id, (void)public_id, (void)has_subset;
    stop_corrupt(user, "has a document type declaration");
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
    (void)attributes;
    document *d = user;
    if (d->status != DW_OK)
        return;
    unsigned level = d->depth++;
    d->n_text = 0;
    d->text_cut = false;
    if (level == MAX_DEPTH) {
        stop_corrupt(d, "is nested too deeply");
    } else if (level == 0 && strcmp(name, d->root) != 0) {
        char fault[128];
        snprintf(fault, sizeof fault, "is a <%.40s>, not a <%s>", name, d->root);
        stop_corrupt(d, fault);
    } else if (level < MAX_LEVELS) {
        d->root_seen = true;
        snprintf(d->names[level], sizeof d->names[0], "%s", name);
        if (d->begin)
            d->begin(d, level, name);
    }
}

static void on_text(void *user, const XML_Char *text, int n_bytes)
{
    document *d = user;
    size_t n = (size_t)n_bytes;
    if (n > MAX_TEXT - d->n_text) {
        n = MAX_TEXT - d->n_text;
        d->text_cut = true;
    }
    memcpy(d->text + d->n_text, text, n);
    d->n_text += n;
}

static void on_end(void *user, const XML_Char *name)
{
    document *d = user;
    if (d->status != DW_OK)
        return;
    unsigned level = --d->depth;
    d->text[d->n_text] = '\0';
    if (level < MAX_LEVELS)
        d->end(d, level, name);
    d->n_text = 0; /* the text between elements is blank */
    d->text_cut = false;
}

/* Whether the element that ended at LEVEL is NAME inside PARENT inside the root. */
static bool is_inside(const document *d, unsigned level, const char *parent,
                      const char *name, const char *wanted)
{
    return level == 2 && strcmp(d->names[1], parent) == 0 && strcmp(name, wanted) == 0;
}

/* Servers may put blanks or a line break before the declaration; XML does not allow it.
 */
static const char *skip_blanks(const char *xml, size_t *n_bytes)
{
    for (; *n_bytes > 0 && strchr(" \t\r\n", *xml) && *xml; xml++)
        --*n_bytes;
    return xml;
}

static dw_status parse_document(document *d, const void *bytes, size_t n_bytes)
{
    static const XML_Memory_Handling_Suite memory = {xml_allocate, xml_reallocate,
                                                     dw_free};
    const char *xml = skip_blanks(n_bytes ? bytes : "", &n_bytes);
    if (n_bytes > INT_MAX)
        return dw_fail(d->err, DW_CORRUPT, d->where, "the server's XML is too long");
    d->parser = XML_ParserCreate_MM(NULL, &memory, NULL);
    if (!d->parser)
        return dw_fail_memory(d->err, d->where);
    XML_SetUserData(d->parser, d);
    XML_SetStartDoctypeDeclHandler(d->parser, on_doctype);
    XML_SetElementHandler(d->parser, on_start, on_end);
    XML_SetCharacterDataHandler(d->parser, on_text);
    enum XML_Status parsed = XML_Parse(d->parser, xml, (int)n_bytes, XML_TRUE);
    enum XML_Error fault = XML_GetErrorCode(d->parser);
    if (d->status == DW_OK && fault == XML_ERROR_NO_MEMORY)
        d->status = dw_fail_memory(d->err, d->where);
    else if (d->status == DW_OK && parsed != XML_STATUS_OK)
        d->status = dw_fail(d->err, DW_CORRUPT, d->where,
                            "the server's answer is not XML: %s", XML_ErrorString(fault));
    XML_ParserFree(d->parser);
    return d->status;
}

/* A copy of the text of the element that ended; the caller frees it. NULL after a
 * failure. */
static char *take_text(document *d, size_t n_most)
{
    if (d->text_cut || d->n_text > n_most) {
        stop_corrupt(d, "has a text that is too long");
        return NULL;
    }
    char *copy = dw_copy_string(d->text);
    if (!copy)
        stop(d, dw_fail_memory(d->err, d->where));
    return copy;
}

static void replace_text(document *d, char **out, size_t n_most)
{
    dw_free(*out);
    *out = take_text(d, n_most);
}

static document *new_document(dw_error *err, const char *where)
{
    document *d = dw_alloc_zeroed(1, sizeof *d);
    if (!d) {
        dw_fail_memory(err, where);
        return NULL;
    }
    d->err = err;
    d->where = where;
    return d;
}

/* ---- <Error> ---- */

static void take_error(document *d, const char *name)
{
    dw_s3_error *out = d->context;
    if (strcmp(name, "Code") == 0)
        snprintf(out->code, sizeof out->code, "%.*s", (int)sizeof out->code - 1, d->text);
    if (strcmp(name, "Message") == 0)
        snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1,
                 d->text);
}

static void end_in_error(document *d, unsigned level, const char *name)
{
    if (level == 1)
        take_error(d, name);
}

bool dw_s3_error_parse(dw_s3_error *out, const void *xml, size_t n_bytes)
{
    *out = (dw_s3_error){{0}, {0}};
    document *d = new_document(NULL, NULL);
    if (!d)
        return true;
    d->root = "Error";
    d->end = end_in_error;
    d->context = out;
    bool is_error = parse_document(d, xml, n_bytes) == DW_NO_MEMORY || d->root_seen;
    dw_free(d);
    return is_error;
}

/* ---- ListBucketResult ---- */

typedef struct list_state {
    dw_s3_list_page *page;
    size_t n_room;
    bool url_encoded;
} list_state;

static bool parse_size(const char *text, uint64_t *out)
{
    uint64_t n = 0;
    if (!*text)
        return false;
    for (; *text; text++)
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (unsigned)(*text - '0'), &n))
            return false;
    *out = n;
    return true;
}

static void begin_in_list(document *d, unsigned level, const char *name)
{
    list_state *state = d->context;
    dw_s3_list_page *page = state->page;
    if (level != 1 || strcmp(name, "Contents") != 0)
        return;
    if (page->n_entries == DW_S3_PAGE_ENTRIES) {
        stop_corrupt(d, "lists too many objects on one page");
        return;
    }
    void *entries = page->entries;
    if (!dw_grow_array(&entries, &state->n_room, page->n_entries,
                       sizeof *page->entries)) {
        stop(d, dw_fail_memory(d->err, d->where));
        return;
    }
    page->entries = entries;
    page->entries[page->n_entries++] = (dw_s3_list_entry){0};
}

static void end_in_list(document *d, unsigned level, const char *name)
{
    list_state *state = d->context;
    dw_s3_list_page *page = state->page;
    dw_s3_list_entry *entry =
        page->n_entries > 0 ? &page->entries[page->n_entries - 1] : NULL;
    if (level == 1 && strcmp(name, "IsTruncated") == 0)
        page->truncated = strcmp(d->text, "true") == 0;
    else if (level == 1 && strcmp(name, "NextContinuationToken") == 0)
        replace_text(d, &page->next_token, DW_S3_KEY_BYTES);
    else if (level == 1 && strcmp(name, "EncodingType") == 0)
        state->url_encoded = strcmp(d->text, "url") == 0;
    else if (!entry)
        return;
    else if (is_inside(d, level, "Contents", name, "Key"))
        replace_text(d, &entry->key, MAX_TEXT);
    else if (is_inside(d, level, "Contents", name, "LastModified"))
        entry->modified_ms = dw_time_parse(d->text);
    else if (is_inside(d, level, "Contents", name, "Size") &&
             !parse_size(d->text, &entry->n_bytes))
        stop_corrupt(d, "has a size that is no number");
    else if (level == 1 && strcmp(name, "Contents") == 0 && !entry->key)
        stop_corrupt(d, "lists an object without a key");
}

/* Decodes in place. A space is sent as '+', as in a form. */
static bool percent_decode(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p != '%') {
            *to++ = *p == '+' ? ' ' : *p;
            continue;
        }
        int high = dw_hex_digit(p[1]);
        int low = high < 0 ? -1 : dw_hex_digit(p[2]);
        if (low < 0 || high + low == 0)
            return false;
        *to++ = (char)(high << 4 | low);
        p += 2;
    }
    *to = '\0';
    return true;
}

/* Checks the whole document, because elements come in any order. */
static dw_status finish_list(list_state *state, const char *where, dw_error *err)
{
    dw_s3_list_page *page = state->page;
    for (size_t i = 0; i < page->n_entries; i++) {
        char *key = page->entries[i].key;
        if (state->url_encoded && !percent_decode(key))
            return dw_fail(err, DW_CORRUPT, where, "the listing has a badly encoded key");
        if (strlen(key) > DW_S3_KEY_BYTES)
            return dw_fail(err, DW_CORRUPT, where,
                           "the listing has a key of more than %d bytes",
                           DW_S3_KEY_BYTES);
    }
    if (page->truncated && !page->next_token)
        return dw_fail(err, DW_CORRUPT, where,
                       "the listing continues, but the server sent no token for it");
    return DW_OK;
}

dw_status dw_s3_list_parse(void *page, const void *xml, size_t n_bytes, const char *where,
                           dw_error *err)
{
    dw_s3_list_page *out = page;
    *out = (dw_s3_list_page){0};
    list_state state = {.page = out};
    document *d = new_document(err, where);
    if (!d)
        return DW_NO_MEMORY;
    d->root = "ListBucketResult";
    d->begin = begin_in_list;
    d->end = end_in_list;
    d->context = &state;
    dw_status status = parse_document(d, xml, n_bytes);
    if (status == DW_OK)
        status = finish_list(&state, where, err);
    if (status != DW_OK)
        dw_s3_list_page_release(out);
    dw_free(d);
    return status;
}

void dw_s3_list_page_release(dw_s3_list_page *page)
{
    for (size_t i = 0; i < page->n_entries; i++)
        dw_free(page->entries[i].key);
    dw_free(page->entries);
    dw_free(page->next_token);
    *page = (dw_s3_list_page){0};
}

/* ---- multipart writes ---- */

static void end_in_upload(document *d, unsigned level, const char *name)
{
    if (level == 1 && strcmp(name, "UploadId") == 0)
        replace_text(d, d->context, DW_S3_KEY_BYTES);
}

dw_status dw_s3_upload_id_parse(void *id, const void *xml, size_t n_bytes,
                                const char *where, dw_error *err)
{
    char **out = id;
    *out = NULL;
    document *d = new_document(err, where);
    if (!d)
        return DW_NO_MEMORY;
    d->root = "InitiateMultipartUploadResult";
    d->end = end_in_upload;
    d->context = out;
    dw_status status = parse_document(d, xml, n_bytes);
    if (status == DW_OK && (!*out || !**out))
        status = dw_fail(err, DW_CORRUPT, where, "the server's XML has no UploadId");
    if (status != DW_OK) {
        dw_free(*out);
        *out = NULL;
    }
    dw_free(d);
    return status;
}

static void end_unread(document *d, unsigned level, const char *name)
{
    (void)d, (void)level, (void)name;
}

dw_status dw_s3_complete_parse(void *unused, const void *xml, size_t n_bytes,
                               const char *where, dw_error *err)
{
    (void)unused;
    document *d = new_document(err, where);
    if (!d)
        return DW_NO_MEMORY;
    d->root = "CompleteMultipartUploadResult";
    d->end = end_unread;
    dw_status status = parse_document(d, xml, n_bytes);
    dw_free(d);
    return status;
}

static void write_escaped(dw_writer *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            dw_write_text(out, "&amp;");
            break;
        case '<':
            dw_write_text(out, "&lt;");
            break;
        case '>':
            dw_write_text(out, "&gt;");
            break;
        default:
            dw_write_u8(out, (uint8_t)*text);
        }
    }
}

void dw_s3_complete_write(dw_writer *out, char *const *etags, size_t n_etags)
{
    dw_write_text(out, "<CompleteMultipartUpload "
                       "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < n_etags; i++) {
        dw_write_format(out, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
        write_escaped(out, etags[i]);
        dw_write_text(out, "</ETag></Part>");
    }
    dw_write_text(out, "</CompleteMultipartUpload>");
}

/* ---- STS ---- */

static void end_in_keys(document *d, unsigned level, const char *name)
{
    dw_sts_keys *out = d->context;
    if (level != 3 || strcmp(d->names[2], "Credentials") != 0)
        return;
    if (strcmp(name, "AccessKeyId") == 0)
        replace_text(d, &out->access_key, MAX_TEXT);
    else if (strcmp(name, "SecretAccessKey") == 0)
        replace_text(d, &out->secret_key, MAX_TEXT);
    else if (strcmp(name, "SessionToken") == 0)
        replace_text(d, &out->session_token, MAX_TEXT);
    else if (strcmp(name, "Expiration") == 0)
        out->expires_ms = dw_time_parse(d->text);
}

dw_status dw_sts_keys_parse(dw_sts_keys *out, const char *root, const void *xml,
                            size_t n_bytes, const char *where, dw_error *err)
{
    *out = (dw_sts_keys){0};
    document *d = new_document(err, where);
    if (!d)
        return DW_NO_MEMORY;
    d->root = root;
    d->end = end_in_keys;
    d->context = out;
    dw_status status = parse_document(d, xml, n_bytes);
    OPENSSL_cleanse(d, sizeof *d);
    dw_free(d);
    if (status == DW_OK && (!out->access_key || !out->secret_key || !out->session_token ||
                            out->expires_ms == 0))
        status = dw_fail(err, DW_CORRUPT, where,
                         "the answer of STS lacks a key, the token or the expiration");
    return status;
}

static void end_in_sts_error(document *d, unsigned level, const char *name)
{
    if (is_inside(d, level, "Error", name, name))
        take_error(d, name);
}

void dw_sts_error_parse(dw_s3_error *out, const void *xml, size_t n_bytes)
{
    *out = (dw_s3_error){{0}, {0}};
    document *d = new_document(NULL, NULL);
    if (!d)
        return;
    d->root = "ErrorResponse";
    d->end = end_in_sts_error;
    d->context = out;
    parse_document(d, xml, n_bytes);
    dw_free(d);
}
