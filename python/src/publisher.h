/* The inside of deltawire.Publisher.
 *
 * Calls take turns by the guard, but for those that wait for a ticket, which any thread
 * may do beside others: they hold `alive` for reading, in slices, and close takes it for
 * writing before it frees.
 */
#ifndef DWPY_PUBLISHER_H
#define DWPY_PUBLISHER_H

#include "store.h"
#include "tensors.h"

typedef struct publisher_object {
    PyObject_HEAD dw_publisher *publisher; /* NULL: closed */
    pthread_rwlock_t alive;
    dwpy_guard guard;
    dwpy_live live;
    PyObject *store;
    PyObject *fork_store;
    dw_sign_key *sign_key;
    dwpy_tensors tensors;
    dw_when_busy when_busy;
    unsigned exit_ms;
    uint64_t ticket;      /* the last one, 0: none */
    uint64_t told_ticket; /* the last one whose fate somebody was told */
} publisher_object;

/* ---- publisher_open.c ---- */
PyObject *dwpy_publisher_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- publisher_end.c ---- */

/* Frees the handle and lets go of all it used. */
void dwpy_publisher_close_handle(publisher_object *self);
/* The same in bounded time, whatever the store does: what cannot be ended is left behind.
 */
void dwpy_publisher_end_bounded(publisher_object *self);
void dwpy_publisher_end(dwpy_live *live);

#endif
