/* A JSON file of a model's directory. */
#ifndef WORDLE_JSON_FILE_H
#define WORDLE_JSON_FILE_H

#include <jansson.h>

#include <deltawire/deltawire.h>

enum { WORDLE_PATH_SIZE = 4096 };

/* PATH := DIR/NAME. */
dw_status wordle_path_join(char path[WORDLE_PATH_SIZE], const char *dir, const char *name,
                           dw_error *err);

/* Reads the whole file; release it with json_decref. Refuses duplicate members, and a
 * file that is not an object. */
dw_status wordle_json_read(json_t **out, const char *path, dw_error *err);

#endif
