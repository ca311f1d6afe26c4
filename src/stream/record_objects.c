#include "stream/record_parts.h"

#include "base/mem.h"

uint64_t dw_objects_bytes(const dw_objects *objects)
{
    uint64_t n_bytes = 0; /* below 2^16 numbers below 2^53 */
    for (size_t i = 0; i < objects->n; i++)
        n_bytes += objects->items[i].n_bytes;
    return n_bytes;
}

static void read_part(dw_fields *f, const char *name, void *object)
{
    dw_object *o = object;
    dw_field_covers(f, &o->covers, &o->n_covers, name);
    if (f->status == DW_OK && o->n_covers == 0)
        dw_fields_fail(f, DW_CORRUPT, name, "is empty");
}

static void write_part(dw_writer *out, const void *object)
{
    const dw_object *o = object;
    dw_write_covers(out, o->covers, o->n_covers);
}

static void release_part(void *object)
{
    dw_free(((dw_object *)object)->covers);
}

static bool is_part(const void *object)
{
    return ((const dw_object *)object)->covers != NULL;
}

static const dw_member_own part_member = {read_part, write_part, release_part, is_part};

static const dw_member members[] = {
    DW_MEMBER(dw_object, key, "key", LABEL),
    DW_MEMBER(dw_object, n_bytes, "bytes", NUMBER),
    DW_MEMBER(dw_object, sha256, "sha256", SHA256),
    DW_MEMBER_WHOLE("covers", .of = &part_member, .is_optional = true),
    {0},
};

static void check(dw_fields *f, const void *object)
{
    const dw_object *o = object;
    uint64_t version;
    bool of_shortcut;
    if (!dw_key_is_object(o->key, &version, &of_shortcut))
        dw_fields_fail(f, DW_CORRUPT, "key", "is no name of an object: '%s'", o->key);
}

static const dw_member_list list = {members, sizeof(dw_object), offsetof(dw_object, key),
                                    DW_MAX_OBJECTS, check};

static void read_objects(dw_fields *f, const char *name, void *out)
{
    dw_objects *objects = out;
    objects->items = dw_field_items(f, name, &list, &objects->n);
}

static void write_objects(dw_writer *out, const void *value)
{
    const dw_objects *objects = value;
    dw_write_items(out, &list, objects->items, objects->n);
}

void dw_objects_release(dw_objects *objects)
{
    dw_items_release(&list, objects->items, objects->n);
    *objects = (dw_objects){0};
}

static void release_objects(void *objects)
{
    dw_objects_release(objects);
}

const dw_member_own dw_objects_member = {read_objects, write_objects, release_objects,
                                         NULL};
