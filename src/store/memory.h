/* mem:NAME, a store in this process's memory. The same name means the same store. It is
 * gone when its last handle is closed. */
#ifndef DW_STORE_MEMORY_H
#define DW_STORE_MEMORY_H

#include "deltawire/store.h"

dw_status dw_mem_store_open(dw_store **out, const char *url, dw_error *err);

#endif
