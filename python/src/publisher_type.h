/* The internals of deltawire.Publisher.
 *
 * The guard makes calls run one at a time. Calls that wait for a ticket may run beside
 * others: they hold `alive` for reading, in slices, and close takes it for writing before
 * it frees.
 */
#ifndef DWPY_PUBLISHER_TYPE_H
#define DWPY_PUBLISHER_TYPE_H

#include "store_type.h"
#include "tensors.h"

typedef struct publisher_object {
    PyObject_HEAD dw_publisher *publisher; /* NULL: closed */
    pthread_rwlock_t alive;
    dwpy_guard guard;
    dwpy_live live;
    PyObject *store;
    PyObject *fork_store;
    dw_sign_key *sign_key;
    PyObject *agree; /* called with a memory view, or NULL */
    dwpy_tensors tensors;
    dwpy_tensors shards;
    PyObject *numbers; /* the indices of the tensors, by name */
    unsigned exit_ms;
    uint64_t ticket;           /* the last one, 0: none */
    uint64_t reported_ticket;  /* the last one whose result the caller has */
    bool has_opening;          /* opening published the weights, ... */
    dw_publish_report opening; /* ... with this report */
} publisher_object;

/* ---- publisher_open.c ---- */
PyObject *dwpy_publisher_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- publisher_shards.c ---- */

/* Fills `numbers`. */
bool dwpy_publisher_number(publisher_object *self);
/* Flags for the tensors in NAMES; NULL for None. Free with PyMem_Free. */
bool dwpy_publisher_flags(const publisher_object *self, PyObject *names, const char *what,
                          bool **out);
/* Keeps the arrays of SHARDS in the object. Free *OUT with PyMem_Free, also after a
 * failure. */
bool dwpy_publisher_shards(publisher_object *self, PyObject *shards, dw_shard **out,
                           size_t *n);
/* A mapping of names of devices to CUDA streams, as numbers; NULL or None: none. Free
 * *OUT with PyMem_Free. */
bool dwpy_publisher_streams(const publisher_object *self, PyObject *mapping,
                            dw_device_stream **out, size_t *n);

/* ---- quantize.c ---- */

typedef struct dwpy_quantize {
    const char *scheme; /* or NULL */
    PyObject *keep, *also;
    int from_f32;
    dw_quant_options options; /* filled by _read */
    PyObject *kept[2];
} dwpy_quantize;

/* Fills the options; an exception if something is wrong. Release in any case. */
bool dwpy_quantize_read(dwpy_quantize *quantize);
void dwpy_quantize_release(dwpy_quantize *quantize);

/* ---- publisher_files.c ---- */

/* The argument `files`. */
typedef struct dwpy_files {
    bool is_given;
    const dw_file *files;
    size_t n;
    dw_companions *companions; /* of a directory */
    dw_file *list;             /* of a mapping; PyMem_Free */
    PyObject *kept;            /* what LIST points to */
} dwpy_files;

/* Takes a directory, a mapping, or NULL or None. Release it in any case. */
bool dwpy_files_read(dwpy_files *out, PyObject *files);
void dwpy_files_release(dwpy_files *files);

/* ---- publisher_end.c ---- */

/* Releases the caller's memory. */
void dwpy_publisher_drop(publisher_object *self);

/* Frees the handle and releases everything it used. */
void dwpy_publisher_close_handle(publisher_object *self);
/* The same in bounded time, whatever the store does. What does not end is leaked.
 */
void dwpy_publisher_end_bounded(publisher_object *self);
void dwpy_publisher_end(dwpy_live *live);

#endif
