/* A secret in a file: one line. */
#ifndef CLI_SECRET_FILE_H
#define CLI_SECRET_FILE_H

#include <deltawire/error.h>

/* Reads it, without the end of its line; to be freed. Refuses one that is empty, longer
 * than 4,096 bytes, or holds anything but printable ASCII: it goes into a header. */
dw_status cli_secret_file_read(char **out, const char *path, dw_error *err);

#endif
