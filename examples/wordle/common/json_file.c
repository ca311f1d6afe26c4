#include "json_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fail.h"

enum { MAX_MIB = 256 };

dw_status wordle_path_join(char path[WORDLE_PATH_SIZE], const char *dir, const char *name,
                           dw_error *err)
{
    if (snprintf(path, WORDLE_PATH_SIZE, "%s/%s", dir, name) >= WORDLE_PATH_SIZE)
        return wordle_fail(err, DW_INVALID, dir, "the path is too long");
    return DW_OK;
}

dw_status wordle_json_read(json_t **out, const char *path, dw_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 && info.st_size > (off_t)MAX_MIB << 20)
        return wordle_fail(err, DW_UNSUPPORTED, path, "is larger than %d MiB", MAX_MIB);
    json_error_t trouble;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &trouble);
    if (root == NULL) {
        bool missing = json_error_code(&trouble) == json_error_cannot_open_file;
        return wordle_fail(err, missing ? DW_NOT_FOUND : DW_CORRUPT, path, "%s (line %d)",
                           trouble.text, trouble.line);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return wordle_fail(err, DW_CORRUPT, path, "must hold a JSON object");
    }
    *out = root;
    return DW_OK;
}
