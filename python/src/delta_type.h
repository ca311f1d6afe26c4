#ifndef DWPY_DELTA_TYPE_H
#define DWPY_DELTA_TYPE_H

#include "tensors.h"

/* Makes a deltawire.Delta. Owns both arguments, also if it fails. BYTES, from
 * PyMem_Malloc, are the memory of the delta; or NULL. */
PyObject *dwpy_delta_wrap(dw_delta *delta, void *bytes);

#endif
