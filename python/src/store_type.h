/* Stores, for the handles that use them. */
#ifndef DWPY_STORE_TYPE_H
#define DWPY_STORE_TYPE_H

#include "core.h"

/* Opens the URL or uses the Store, and keeps it open until dwpy_store_leave(*KEPT). */
dw_store *dwpy_store_use(PyObject *store_or_url, PyObject **kept);
/* Accepts NULL. */
void dwpy_store_leave(PyObject *kept);

#endif
