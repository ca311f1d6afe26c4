/* Text from outside that people read: host names, and the writer's name in records.
 */
#ifndef DW_BASE_TEXT_H
#define DW_BASE_TEXT_H

#include <stddef.h>

#define DW_HOST_NAME_TEXT 256 /* the name of a machine, with its NUL */

/* Copies TEXT to OUT, which has room for SIZE bytes with the NUL. Control characters,
 * marks that change the direction of text, and bytes that are not UTF-8 become '?'. Text
 * that is too long is cut after a whole character. */
void dw_text_clean(char *out, size_t size, const char *text);

/* The name of this machine, cleaned; "?" if it has none. */
void dw_host_name(char out[DW_HOST_NAME_TEXT]);

#endif
