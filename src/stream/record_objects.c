#include "stream/record_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

void dw_objects_release(dw_objects *objects)
{
    for (size_t i = 0; i < objects->n; i++)
        dw_free(objects->items[i].covers);
    dw_free(objects->items);
    *objects = (dw_objects){0};
}

uint64_t dw_objects_bytes(const dw_objects *objects)
{
    uint64_t n_bytes = 0; /* below 2^16 numbers below 2^53 */
    for (size_t i = 0; i < objects->n; i++)
        n_bytes += objects->items[i].n_bytes;
    return n_bytes;
}

static void read_key(dw_fields *f, char out[DW_KEY_TEXT])
{
    uint64_t version;
    bool of_shortcut;
    const char *key = dw_field_text(f, "key", DW_KEY_TEXT - 1);
    if (f->status == DW_OK && !dw_key_is_object(key, &version, &of_shortcut))
        dw_fields_fail(f, DW_CORRUPT, "key", "is no name of an object: '%s'", key);
    memcpy(out, key, strlen(key) + 1);
}

static void read_object(dw_fields *f, dw_object *out)
{
    read_key(f, out->key);
    out->n_bytes = dw_field_number(f, "bytes");
    dw_field_sha256(f, out->sha256, "sha256");
    if (f->status != DW_OK || !dw_json_get(f->object, "covers"))
        return;
    dw_field_covers(f, &out->covers, &out->n_covers, "covers");
    if (f->status == DW_OK && out->n_covers == 0)
        dw_fields_fail(f, DW_CORRUPT, "covers", "is empty");
}

static int compare_keys(const void *a_, const void *b_)
{
    const dw_object *const *a = a_, *const *b = b_;
    return strcmp((*a)->key, (*b)->key);
}

static void refuse_same_keys(dw_fields *f, const dw_objects *objects)
{
    if (f->status != DW_OK || objects->n < 2)
        return;
    const dw_object **sorted = dw_alloc_array(objects->n, sizeof *sorted);
    if (!sorted) {
        dw_fields_fail_memory(f);
        return;
    }
    for (size_t i = 0; i < objects->n; i++)
        sorted[i] = &objects->items[i];
    qsort(sorted, objects->n, sizeof *sorted, compare_keys);
    for (size_t i = 1; i < objects->n; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            dw_fields_fail(f, DW_CORRUPT, "objects", "names '%s' twice", sorted[i]->key);
    dw_free(sorted);
}

void dw_field_objects(dw_fields *f, dw_objects *objects)
{
    const dw_json *list = dw_field_array(f, "objects");
    size_t n = dw_json_size(list);
    if (n > DW_MAX_OBJECTS)
        dw_fields_fail(f, DW_CORRUPT, "objects", "has %zu entries, over the limit of %d",
                       n, DW_MAX_OBJECTS);
    if (f->status != DW_OK)
        return;
    objects->items = dw_alloc_zeroed(n, sizeof *objects->items);
    if (!objects->items) {
        dw_fields_fail_memory(f);
        return;
    }
    objects->n = n;
    const dw_json *item = dw_json_first(list);
    for (size_t i = 0; item && f->status == DW_OK; i++, item = dw_json_next(list, item)) {
        char path[40];
        snprintf(path, sizeof path, "objects[%zu].", i);
        dw_fields entry = {
            .object = item, .path = path, .where = f->where, .err = f->err};
        if (dw_json_is_object(entry.object))
            read_object(&entry, &objects->items[i]);
        else
            dw_fields_fail(f, DW_CORRUPT, "objects", "has at %zu no object", i);
        if (f->status == DW_OK)
            f->status = entry.status;
    }
    refuse_same_keys(f, objects);
}

void dw_write_objects(dw_writer *out, const dw_objects *objects)
{
    dw_write_u8(out, '[');
    for (size_t i = 0; i < objects->n; i++) {
        const dw_object *o = &objects->items[i];
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, o->sha256, DW_SHA256_BYTES);
        dw_write_text(out, i ? ",{\"key\":" : "{\"key\":");
        dw_write_json_string(out, o->key);
        dw_write_format(out, ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"", o->n_bytes,
                        sha256);
        if (o->covers) {
            dw_write_text(out, ",\"covers\":");
            dw_write_covers(out, o->covers, o->n_covers);
        }
        dw_write_u8(out, '}');
    }
    dw_write_u8(out, ']');
}
