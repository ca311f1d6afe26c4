#ifndef DWPY_DELTA_TYPE_H
#define DWPY_DELTA_TYPE_H

#include "tensors.h"

/* A deltawire.Delta; takes both, also if it fails. BYTES, from PyMem_Malloc, are
 * behind the delta, or NULL. */
PyObject *dwpy_delta_wrap(dw_delta *delta, void *bytes);

#endif
