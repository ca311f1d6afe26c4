#include "stream/listing.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

static dw_status take_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    dw_listing *l = context;
    size_t n = strlen(entry->key);
    if (n >= DW_KEY_TEXT)
        return DW_OK;
    if (!dw_grow_array((void **)&l->items, &l->n_room, l->n, sizeof *l->items))
        return dw_fail_memory(err, entry->key);
    dw_listed *item = &l->items[l->n++];
    *item = (dw_listed){.n_bytes = entry->n_bytes, .modified_ms = entry->modified_ms};
    memcpy(item->key, entry->key, n + 1);
    return DW_OK;
}

dw_status dw_listing_load(dw_listing *out, dw_store *store, const char *prefix,
                          dw_error *err)
{
    *out = (dw_listing){0};
    return dw_store_list(store, prefix, NULL, take_entry, out, err);
}

void dw_listing_release(dw_listing *listing)
{
    dw_free(listing->items);
    *listing = (dw_listing){0};
}

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const dw_listed *)item)->key);
}

dw_listed *dw_listing_find(const dw_listing *listing, const char *key)
{
    if (listing->n == 0)
        return NULL;
    return bsearch(key, listing->items, listing->n, sizeof *listing->items, compare_key);
}

bool dw_listing_has(const dw_listing *listing, const dw_object *object)
{
    const dw_listed *found = dw_listing_find(listing, object->key);
    return found && found->n_bytes == object->n_bytes;
}

dw_status dw_listing_floor(const dw_listing *shortcuts, dw_stream *stream,
                           uint64_t *floor, dw_error *err)
{
    uint64_t known, version, from, lowest = UINT64_MAX;
    *floor = 0;
    dw_status status = dw_stream_floor(stream, &known, err);
    if (status != DW_OK || known == 0)
        return status;
    for (size_t i = 0; i < shortcuts->n; i++)
        if (dw_key_is_shortcut(shortcuts->items[i].key, &version, &from) &&
            from == DW_NO_VERSION && version >= known && version < lowest)
            lowest = version;
    *floor = lowest < UINT64_MAX ? lowest : 0;
    return DW_OK;
}
