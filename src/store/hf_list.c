#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "store/hf_native.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"

enum { MAX_PAGES = 100000 };

typedef struct listing {
    dw_hf *hub;
    const char *prefix, *after;
    dw_s3_list_entry *entries;
    size_t n_entries, n_room;
    char *
        next; /* the address of the next page; NULL before the first and after the last */
} listing;

static dw_status fail_page(const listing *l, const char *fault, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, l->hub->url, "the Hub's listing %s", fault);
}

static dw_status take_item(listing *l, const dw_json *item, dw_error *err)
{
    const char *type = dw_json_string(dw_json_get(item, "type"));
    const char *path = dw_json_string(dw_json_get(item, "path"));
    const char *time = dw_json_string(dw_json_get(item, "uploadedAt"));
    uint64_t n_bytes;
    if (!type || !path)
        return fail_page(l, "has an entry without type or path", err);
    size_t n_prefix = strlen(l->hub->prefix);
    if (strcmp(type, "file") != 0 || strncmp(path, l->hub->prefix, n_prefix) != 0 ||
        !dw_store_key_valid(path + n_prefix) ||
        !dw_store_listed(path + n_prefix, l->prefix, l->after))
        return DW_OK;
    if (!dw_json_unsigned(dw_json_get(item, "size"), &n_bytes))
        return fail_page(l, "has a file without a size", err);
    void *entries = l->entries;
    char *key = dw_copy_string(path + n_prefix);
    if (!key || !dw_grow_array(&entries, &l->n_room, l->n_entries, sizeof *l->entries)) {
        dw_free(key);
        return dw_fail_memory(err, l->hub->url);
    }
    l->entries = entries;
    l->entries[l->n_entries++] =
        (dw_s3_list_entry){key, n_bytes, time ? dw_time_parse(time) : 0};
    return DW_OK;
}

static dw_status take_page(listing *l, const dw_http_call *call, dw_error *err)
{
    dw_json *page;
    dw_status status = dw_json_read_any(&page, call->text.bytes, call->text.n_bytes,
                                        "page of the Hub's listing", l->hub->url, err);
    if (status != DW_OK)
        return status;
    if (!dw_json_is_array(page))
        status = fail_page(l, "is not a JSON array", err);
    for (const dw_json *it = dw_json_first(page); status == DW_OK && it;
         it = dw_json_next(page, it))
        status = take_item(l, it, err);
    dw_json_free(page);
    return status;
}

/* Parses `<https://HUB/...>; rel="next"`. Never goes to another host, because the token
 * is sent along. */
static dw_status take_link(listing *l, const char *text, dw_error *err)
{
    dw_free(l->next);
    l->next = NULL;
    const char *rel = text ? strstr(text, "rel=\"next\"") : NULL;
    if (!rel)
        return DW_OK;
    const char *start = rel;
    while (start > text && *start != '<')
        start--;
    size_t n = strcspn(start, ">");
    if (*start != '<' || start + n > rel)
        return fail_page(l, "has a Link that cannot be read", err);
    l->next = dw_copy_string(start + 1);
    if (!l->next)
        return dw_fail_memory(err, l->hub->url);
    l->next[n - 1] = '\0';
    return dw_hf_is_hub(l->hub, l->next) ? DW_OK
                                         : fail_page(l, "goes on at another host", err);
}

/* The deepest directory that holds all keys with the prefix. */
static void write_tree_url(const listing *l, bool *is_root, dw_writer *out)
{
    const dw_hf *h = l->hub;
    dw_write_text(out, h->endpoint);
    dw_write_text(out, "/api/buckets/");
    dw_write_text(out, h->bucket);
    dw_write_text(out, "/tree");
    dw_writer dir = {0};
    dw_write_text(&dir, h->prefix);
    const char *slash = strrchr(l->prefix, '/');
    dw_write_bytes(&dir, l->prefix, slash ? (size_t)(slash - l->prefix) + 1 : 0);
    *is_root = dir.n_bytes == 0;
    dw_write_u8(&dir, 0);
    if (dir.failed)
        out->failed = true;
    if (!dir.failed && !*is_root) {
        dir.bytes[dir.n_bytes - 2] = '\0'; /* the slash at its end */
        dw_write_u8(out, '/');
        dw_percent_encode(out, (const char *)dir.bytes, true);
    }
    dw_writer_release(&dir);
    dw_write_text(out, "?recursive=true");
    dw_write_u8(out, 0);
}

static dw_status fetch_all(listing *l, dw_error *err)
{
    bool is_root = false;
    for (unsigned n_pages = 0; n_pages < MAX_PAGES; n_pages++) {
        dw_hf_request r = {.hub = l->hub, .key = ""};
        if (l->next)
            dw_write_bytes(&r.url, l->next, strlen(l->next) + 1);
        else
            write_tree_url(l, &is_root, &r.url);
        dw_status status = dw_hf_ask(&r, err);
        /* a directory exists only while it has objects */
        bool nothing = status == DW_NOT_FOUND && !is_root && n_pages == 0;
        if (status == DW_OK)
            status = take_page(l, &r.call, err);
        if (status == DW_OK)
            status = take_link(l, dw_http_header(&r.call, "link"), err);
        dw_hf_request_release(&r);
        if (nothing)
            return DW_OK;
        if (status != DW_OK || !l->next)
            return status;
    }
    return fail_page(l, "does not come to an end", err);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const dw_s3_list_entry *)a)->key, ((const dw_s3_list_entry *)b)->key);
}

/* The Hub guarantees no order, so everything is read before the first entry is reported.
 */
dw_status dw_hf_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                     void *context, dw_error *err)
{
    listing l = {.hub = self, .prefix = prefix, .after = after};
    dw_status status = fetch_all(&l, err);
    if (status == DW_OK && l.n_entries > 0)
        qsort(l.entries, l.n_entries, sizeof *l.entries, compare_keys);
    for (size_t i = 0; status == DW_OK && i < l.n_entries; i++) {
        const dw_s3_list_entry *e = &l.entries[i];
        if (i > 0 && strcmp(e->key, l.entries[i - 1].key) == 0)
            continue; /* pages may overlap when the bucket changes between them */
        status = fn(context, &(dw_store_entry){e->key, e->n_bytes, e->modified_ms}, err);
    }
    for (size_t i = 0; i < l.n_entries; i++)
        dw_free(l.entries[i].key);
    dw_free(l.entries);
    dw_free(l.next);
    return status;
}
