/* The version of the library. Stable. */
#ifndef DELTAWIRE_VERSION_H
#define DELTAWIRE_VERSION_H

#include "deltawire/export.h"

#define DW_VERSION_MAJOR  0
#define DW_VERSION_MINOR  2
#define DW_VERSION_PATCH  0
#define DW_VERSION_STRING "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded. It can be later than the header's. */
DW_API const char *dw_version(void);

#ifdef __cplusplus
}
#endif

#endif
