/* The internals of a patch: stores, sorted by tensor and position, in segments that do
 * not overlap. A segment comes from one decoded block of a tensor, or of a slice
 * (parts.h), which may begin anywhere. */
#ifndef DW_CODEC_PATCH_H
#define DW_CODEC_PATCH_H

#include <pthread.h>

#include "base/file.h"
#include "codec/class_block.h"
#include "codec/stage.h"
#include "deltawire/delta.h"

typedef struct dw_segment {
    size_t tensor;  /* index in the patch's list */
    uint64_t first; /* positions are relative to this element */
    uint32_t n;
    const uint32_t *positions; /* [n], ascending */
    const void *values;        /* [n] elements */
    const void *old_values;    /* [n], the values that they replace; NULL in memory */
    /* in a file: */
    uint64_t n_bytes; /* from the positions to the end of the old values */
    uint64_t hash;    /* XXH64 of them */
} dw_segment;

/* Tells a patch file from any other: its size, and the hash of its table, which has the
 * hashes of all stores. Zeros: of none. */
typedef struct dw_patch_seal {
    uint64_t n_bytes;
    uint64_t hash;
} dw_patch_seal;

/* What devices keep of one delta. */
typedef struct dw_patch_kept {
    dw_kept *items;
    size_t n;
    size_t *tensor_of; /* [slices of the delta] index in the patch's list; or NULL */
} dw_patch_kept;

struct dw_patch {
    dw_tensor *tensors; /* names and shapes of the staged list; data only on devices */
    size_t n_tensors;
    dw_segment *segments;
    size_t n_segments;
    uint64_t n_changed;
    uint64_t n_bytes;
    dw_patch_kept *kept; /* stores to tensors on devices, which have no segments */
    size_t n_kept, n_kept_room;

    void *arena;        /* names and dims */
    bool in_heap;       /* each segment owns its positions; the values follow them */
    dw_map map;         /* else they are in this map */
    dw_patch_seal seal; /* of the file */

    pthread_mutex_t lock; /* guards segments and counts while they are collected */
    size_t n_room;
};

/* The error for stores in a file that were altered. */
dw_status dw_patch_fail_altered(const dw_segment *segment, const char *tensor,
                                const char *where, dw_error *err);

/* Makes an empty patch for tensors of these shapes. */
dw_status dw_patch_new(dw_patch **out, const dw_tensor *tensors, size_t n_tensors,
                       dw_error *err);

/* Adds a segment whose memory stays the caller's; any thread. */
dw_status dw_patch_add(dw_patch *patch, const dw_segment *segment, dw_error *err);

/* A dw_stage_sink: copies the changes into the patch CONTEXT. */
dw_status dw_patch_take(void *context, size_t t, uint64_t first,
                        const dw_decoded *changes, dw_error *err);

/* Takes what the devices of STAGE keep. TENSOR_OF, which it takes over also if it fails,
 * has for each tensor of the stage its number in the patch; NULL: it is the same. */
dw_status dw_patch_keep(dw_patch *patch, dw_stage *stage, size_t *tensor_of,
                        dw_error *err);

/* As dw_patch_apply. *TORN as in dw_kept_store. */
dw_status dw_patch_store(const dw_patch *patch, const dw_tensor *tensors,
                         size_t n_tensors, unsigned n_threads, bool *torn, dw_error *err);

/* Sorts the segments, once all were added. */
void dw_patch_sort(dw_patch *patch);

/* ---- bound to tensors ---- */

/* A patch and the tensors it is for, which both outlive it. */
typedef struct dw_patch_binding {
    const dw_patch *patch;
    const dw_tensor *tensors;
    size_t *target;    /* [patch tensors] index in the list, if it has segments */
    const char *where; /* for errors */
} dw_patch_binding;

/* Finds the tensors by name and checks them. */
dw_status dw_patch_bind(dw_patch_binding *out, const dw_patch *patch,
                        const dw_tensor *tensors, size_t n_tensors, const char *where,
                        dw_error *err);
void dw_patch_unbind(dw_patch_binding *binding);

/* Makes the pages that the stores need present and writable, so that they cause no
 * faults. */
dw_status dw_patch_prepare(const dw_patch_binding *binding, unsigned n_threads,
                           dw_error *err);

/* Stores the values. */
dw_status dw_patch_scatter(const dw_patch_binding *binding, unsigned n_threads,
                           dw_error *err);

/* DW_CORRUPT unless each element holds what the patch stores. */
dw_status dw_patch_confirm(const dw_patch_binding *binding, unsigned n_threads,
                           dw_error *err);

/* ---- as a file (patch_file.c) ---- */

/* The version that the stores lead to. */
typedef struct dw_patch_goal {
    bool has_digest; /* false if the delta named none */
    dw_digest state;
    uint64_t version;
} dw_patch_goal;

/* Writes segments directly into a file that appears when it is complete. TENSORS hold the
 * elements that the stores replace, and outlive the writer. */
typedef struct dw_patch_writer dw_patch_writer;

dw_status dw_patch_writer_open(dw_patch_writer **out, const char *path,
                               const dw_tensor *tensors, size_t n_tensors, dw_error *err);
/* A dw_stage_sink. */
dw_status dw_patch_writer_take(void *context, size_t t, uint64_t first,
                               const dw_decoded *changes, dw_error *err);
/* Syncs and renames. Frees the writer also after an error. */
dw_status dw_patch_writer_commit(dw_patch_writer *writer, const dw_patch_goal *goal,
                                 dw_error *err);
void dw_patch_writer_abort(dw_patch_writer *writer);

/* Maps a patch file and checks all of it. */
dw_status dw_patch_open(dw_patch **out, dw_patch_goal *goal, const char *path,
                        dw_error *err);

/* Reads the seal of a patch file. Zeros if it cannot be one. */
dw_status dw_patch_read_seal(dw_patch_seal *out, const char *path, dw_error *err);

/* DW_STALE unless each byte of each element that the patch stores to is the old or the
 * new one: TENSORS are those it was made for, with none, some or all of the stores done.
 * Needs old_values. */
dw_status dw_patch_check(const dw_patch *patch, const dw_tensor *tensors,
                         size_t n_tensors, unsigned n_threads, const char *where,
                         dw_error *err);

#endif
