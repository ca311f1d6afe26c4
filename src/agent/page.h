/* The page: src/agent/page.html, built into the library. */
#ifndef DW_AGENT_PAGE_H
#define DW_AGENT_PAGE_H

#include <stddef.h>

#include "deltawire/base.h"

extern const unsigned char dw_page[]; /* ended by a NUL */
extern const size_t dw_page_bytes;

#define DW_PAGE_POLICY 1024

/* Its Content-Security-Policy allows only the scripts that are in PAGE, so that no text
 * shown in it can run as a script. DW_UNSUPPORTED if there are too many. */
dw_status dw_page_policy(char out[DW_PAGE_POLICY], const char *page, dw_error *err);

#endif
