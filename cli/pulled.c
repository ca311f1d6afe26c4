#include "pulled.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "path.h"

#define MAX_RECORD_BYTES (1 << 20)

static bool is_hex(const char *text, size_t n_digits)
{
    size_t n = 0;
    while (isxdigit((unsigned char)text[n]))
        n++;
    return n == n_digits && !text[n];
}

static dw_status take(cli_pulled *out, const json_t *record, const char *path,
                      dw_error *err)
{
    const char *stream = json_string_value(json_object_get(record, "stream"));
    const char *state = json_string_value(json_object_get(record, "state"));
    const json_t *version = json_object_get(record, "version");
    if (!stream || !state || !is_hex(stream, 32) || !is_hex(state, 16) ||
        !json_is_integer(version) || json_integer_value(version) < 0)
        return cli_error_set(err, DW_CORRUPT, path,
                             "not a record of a version: pull into a new directory");
    out->present = true;
    memcpy(out->stream, stream, sizeof out->stream);
    out->version = (uint64_t)json_integer_value(version);
    out->state = strtoull(state, NULL, 16);
    return DW_OK;
}

static dw_status read_record(cli_pulled *out, const char *path, dw_error *err)
{
    struct stat st;
    json_error_t fault;
    if (stat(path, &st) != 0)
        return DW_OK;
    json_t *record = S_ISREG(st.st_mode) && st.st_size <= MAX_RECORD_BYTES
                         ? json_load_file(path, JSON_REJECT_DUPLICATES, &fault)
                         : NULL;
    dw_status status = take(out, record, path, err);
    json_decref(record);
    return status;
}

dw_status cli_pulled_read(cli_pulled *out, const char *path, dw_error *err)
{
    *out = (cli_pulled){0};
    char *record = cli_path_join(path, CLI_PULLED_NAME);
    if (!record)
        return cli_error_set(err, DW_NO_MEMORY, path, "out of memory");
    dw_status status = read_record(out, record, err);
    free(record);
    return status;
}

/* ---- two copies ---- */

bool cli_copies_find(char *out[2], const char *dir)
{
    static const char *const names[] = {"copy-0", "copy-1"};
    char target[sizeof "copy-0"] = "";
    char *link = cli_path_join(dir, "current");
    ssize_t n = link ? readlink(link, target, sizeof target) : -1;
    free(link);
    if (n != (ssize_t)sizeof target - 1)
        return false;
    for (int i = 0; i < 2; i++) {
        if (memcmp(target, names[i], (size_t)n) != 0)
            continue;
        out[0] = cli_path_join(dir, names[i]);
        out[1] = cli_path_join(dir, names[1 - i]);
        if (out[0] && out[1])
            return true;
        free(out[0]);
        free(out[1]);
    }
    return false;
}
