/* A secret in a file: one line. */
#ifndef CLI_SECRET_FILE_H
#define CLI_SECRET_FILE_H

#include <deltawire/base.h>

/* Reads it without the line end. The caller frees it. Refuses a secret that is empty,
 * longer than 4,096 bytes, or not printable ASCII, because it goes into an HTTP header.
 */
dw_status cli_secret_file_read(char **out, const char *path, dw_error *err);

#endif
