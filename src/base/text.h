/* Text from outside that people read: names, notes, hosts, paths. */
#ifndef DW_BASE_TEXT_H
#define DW_BASE_TEXT_H

#include <stddef.h>

#define DW_HOST_NAME_TEXT 256 /* the name of a machine, with its NUL */

/* The bytes of the character at TEXT if a terminal would act on it or hide it, instead of
 * showing it: control characters, C1 included, marks that change the direction of text,
 * and others of Unicode's category 'format'. 0 if it is shown. Whatever prints text from
 * outside asks here. */
size_t dw_text_unshown(const char *text);

/* Copies TEXT to OUT, which has room for SIZE bytes with the NUL. Characters that are not
 * shown, and bytes that are not UTF-8, become '?'. Text that is too long is cut after a
 * whole character. */
void dw_text_clean(char *out, size_t size, const char *text);

/* The name of this machine, cleaned; "?" if it has none. */
void dw_host_name(char out[DW_HOST_NAME_TEXT]);

#endif
