/* Settings and secrets from the environment and from files. */
#ifndef DW_NET_CREDENTIALS_H
#define DW_NET_CREDENTIALS_H

#include <stdbool.h>

#include "base/bytes.h"

/* The value of a variable; NULL if it is not set or empty. */
const char *dw_environment(const char *name);

/* Whether TEXT can go into a header line: no blanks, no line breaks, nothing beyond
 * ASCII. */
bool dw_is_header_word(const char *text);

/* Wipes and frees. Accepts NULL. */
void dw_secret_free(char *secret);
void dw_secret_release(dw_writer *secret);

#endif
