/* The inside of deltawire.Follower. */
#ifndef DWPY_FOLLOWER_H
#define DWPY_FOLLOWER_H

#include "store.h"
#include "tensors.h"

typedef struct follower_object {
    PyObject_HEAD dw_follower *follower;
    PyObject *store;
    dwpy_tensors tensors;
    dwpy_guard guard;
    dwpy_live live;
    uint64_t version; /* as of the last call, so that nobody waits for one to ask it */
} follower_object;

/* ---- follower_open.c ---- */
PyObject *dwpy_follower_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- follower.c ---- */
void dwpy_follower_end(dwpy_live *live);

#endif
