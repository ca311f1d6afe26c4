/* What a store lists below a prefix, kept to look things up in. */
#ifndef DW_STREAM_LISTING_H
#define DW_STREAM_LISTING_H

#include "stream/stream.h"

typedef struct dw_listed {
    char key[DW_KEY_TEXT];
    uint64_t n_bytes;
    int64_t modified_ms; /* the store's own time; 0 where unknown */
    unsigned mark;       /* the caller's; 0 at first */
} dw_listed;

typedef struct dw_listing {
    dw_listed *items; /* keys ascending */
    size_t n;
    size_t n_room;
} dw_listing;

/* Keys that are longer than any of a stream's are left out. Release it in any case. */
dw_status dw_listing_load(dw_listing *out, dw_store *store, const char *prefix,
                          dw_error *err);
void dw_listing_release(dw_listing *listing);

/* NULL where KEY is not there. */
dw_listed *dw_listing_find(const dw_listing *listing, const char *key);

/* Whether the listing has OBJECT, with its size. */
bool dw_listing_has(const dw_listing *listing, const dw_object *object);

/* The version that the stream begins at, given its WAYS: floor.json is a hint, so the
 * lowest anchor from what it says on, and 0 where there is none. */
dw_status dw_listing_floor(const dw_listing *shortcuts, dw_stream *stream,
                           uint64_t *floor, dw_error *err);

#endif
