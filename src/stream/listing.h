/* The keys that a store lists below a prefix, sorted for lookups. */
#ifndef DW_STREAM_LISTING_H
#define DW_STREAM_LISTING_H

#include "stream/stream.h"

typedef struct dw_listed {
    char key[DW_KEY_TEXT];
    uint64_t n_bytes;
    int64_t modified_ms; /* the store's own time; 0 if unknown */
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

/* NULL if KEY is not there. */
dw_listed *dw_listing_find(const dw_listing *listing, const char *key);

/* Whether the listing has OBJECT, with its size. */
bool dw_listing_has(const dw_listing *listing, const dw_object *object);

/* The version that the stream begins at, given its WAYS: floor.json is a hint, so it
 * is the lowest anchor at or above that floor, and 0 if there is none. */
dw_status dw_listing_floor(const dw_listing *shortcuts, dw_stream *stream,
                           uint64_t *floor, dw_error *err);

#endif
