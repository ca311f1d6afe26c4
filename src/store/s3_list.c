#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/s3_driver.h"

/* The most pages in a row without a new key: the server repeats itself. */
enum { MAX_IDLE_PAGES = 100 };

typedef struct listing {
    dw_s3 *s3;
    const char *prefix, *after;
    dw_list_fn fn;
    void *context;
    char *token; /* of the next page */
    char *last;  /* the last key reported, below the store's prefix */
    size_t n_idle_pages;
} listing;

static void write_query(const listing *l, unsigned max_keys, dw_writer *out)
{
    dw_write_text(out, "list-type=2&prefix=");
    dw_percent_encode(out, l->s3->prefix, false);
    dw_percent_encode(out, l->prefix, false);
    if (max_keys > 0)
        dw_write_format(out, "&max-keys=%u", max_keys);
    if (l->token) {
        dw_write_text(out, "&continuation-token=");
        dw_percent_encode(out, l->token, false);
    } else if (l->after) {
        dw_write_text(out, "&start-after=");
        dw_percent_encode(out, l->s3->prefix, false);
        dw_percent_encode(out, l->after, false);
    }
    dw_write_u8(out, 0);
}

static dw_status fetch_page(listing *l, unsigned max_keys, dw_s3_list_page *page,
                            dw_error *err)
{
    dw_s3_task task = {.method = "GET", .read = dw_s3_list_parse, .into = page};
    write_query(l, max_keys, &task.query_room);
    dw_status status;
    if (task.query_room.failed) {
        status = dw_fail_memory(err, l->s3->url);
    } else {
        task.query = (const char *)task.query_room.bytes;
        task.call.max_text = DW_S3_PAGE_BYTES;
        status = dw_s3_ask(l->s3, &task, NULL, err);
    }
    dw_s3_task_release(&task);
    return status;
}

/* Skips names that are no keys, which another program wrote, and keys up to AFTER,
 * because not every server honours start-after. */
static bool wanted(const listing *l, const char *key)
{
    return dw_store_key_valid(key) && strncmp(key, l->prefix, strlen(l->prefix)) == 0 &&
           (!l->after || strcmp(key, l->after) > 0);
}

static dw_status hand_over(listing *l, const dw_s3_list_page *page, dw_error *err)
{
    size_t n_prefix = strlen(l->s3->prefix);
    l->n_idle_pages++;
    for (size_t i = 0; i < page->n_entries; i++) {
        const dw_s3_list_entry *e = &page->entries[i];
        if (strncmp(e->key, l->s3->prefix, n_prefix) != 0 ||
            !wanted(l, e->key + n_prefix))
            continue;
        /* A repeated key is harmless. Keys out of order are not: a caller that continues
         * after a key would miss some. */
        int order = l->last ? strcmp(e->key + n_prefix, l->last) : 1;
        if (order < 0)
            return dw_fail(err, DW_UNSUPPORTED, l->s3->url,
                           "the server lists '%s' after '%s': its lists are not in order",
                           e->key + n_prefix, l->last);
        if (order == 0)
            continue;
        char *copy = dw_copy_string(e->key + n_prefix);
        if (!copy)
            return dw_fail_memory(err, l->s3->url);
        dw_free(l->last);
        l->last = copy;
        l->n_idle_pages = 0;
        dw_store_entry entry = {copy, e->n_bytes, e->modified_ms};
        dw_status status = l->fn(l->context, &entry, err);
        if (status != DW_OK)
            return status;
    }
    if (l->n_idle_pages > MAX_IDLE_PAGES)
        return dw_fail(err, DW_CORRUPT, l->s3->url,
                       "the server's listing does not come to an end");
    return DW_OK;
}

dw_status dw_s3_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                     void *context, dw_error *err)
{
    listing l = {
        .s3 = self, .prefix = prefix, .after = after, .fn = fn, .context = context};
    dw_status status;
    bool more;
    do {
        dw_s3_list_page page = {0};
        status = fetch_page(&l, 0, &page, err);
        if (status == DW_OK)
            status = hand_over(&l, &page, err);
        more = status == DW_OK && page.truncated;
        if (more) {
            dw_free(l.token);
            l.token = page.next_token; /* moved here */
            page.next_token = NULL;
        }
        dw_s3_list_page_release(&page);
    } while (more);
    dw_free(l.token);
    dw_free(l.last);
    return status;
}

dw_status dw_s3_explain_403(dw_s3 *s3, const char *key, dw_error *err)
{
    listing l = {.s3 = s3, .prefix = key};
    dw_s3_list_page page = {0};
    /* The key itself is the first one that begins with it, so one entry is enough. */
    if (fetch_page(&l, 1, &page, NULL) != DW_OK)
        return DW_DENIED; /* ERR is already filled */
    size_t n_prefix = strlen(s3->prefix);
    bool there = false;
    for (size_t i = 0; i < page.n_entries; i++)
        if (strlen(page.entries[i].key) > n_prefix &&
            strcmp(page.entries[i].key + n_prefix, key) == 0)
            there = true;
    dw_s3_list_page_release(&page);
    if (there)
        return DW_DENIED;
    char where[DW_ERROR_WHERE_SIZE];
    return dw_fail(err, DW_NOT_FOUND, dw_s3_where(s3, key, where),
                   "there is no such object");
}
