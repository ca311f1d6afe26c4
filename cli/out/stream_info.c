#include "stream_info.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/hash.h"
#include "json_out.h"
#include "outage.h"
#include "print.h"
#include "inner.h"

#define N_CHECKED 1000 /* newest versions that dw_stream_check_log checks */

const char *cli_content_name(dw_content content)
{
    switch (content) {
    case DW_CONTENT_DELTA:
        return "delta";
    case DW_CONTENT_ANCHOR:
        return "anchor";
    case DW_CONTENT_BASE:
        return "base";
    case DW_CONTENT_FORK:
        return "fork";
    }
    return "?";
}

dw_status cli_restart_after(uint64_t *restart, dw_stream *stream, uint64_t version,
                            dw_error *err)
{
    uint64_t head;
    dw_status status = dw_stream_head(stream, &head, err);
    *restart = DW_NO_VERSION;
    for (uint64_t v = version + 1; status == DW_OK && v <= head; v++) {
        dw_version_info info;
        status = dw_stream_version(stream, v, &info, err);
        if (status == DW_OK && info.restart) {
            *restart = v;
            break;
        }
    }
    return status;
}

cli_model_size cli_model_count(const dw_stream *stream)
{
    cli_model_size size = {0};
    const dw_tensor *tensors = dw_stream_tensors(stream, &size.n_tensors);
    for (size_t i = 0; i < size.n_tensors; i++) {
        const dw_tensor *t = &tensors[i];
        uint64_t n_elems = 0;
        if (dw_shape_size(t->dtype, t->n_dims, t->dims, &n_elems, NULL))
            size.n_elems += n_elems;
        size.n_bytes += t->n_bytes;
    }
    return size;
}

bool cli_format_quantized(char out[CLI_QUANTIZED_SIZE], const dw_stream *stream)
{
    dw_stream_info info;
    dw_stream_get_info(stream, &info);
    if (!info.quantization)
        return false;
    if (strcmp(info.rounded, "none") == 0)
        snprintf(out, CLI_QUANTIZED_SIZE, "%s, F32 not rounded first", info.quantization);
    else
        snprintf(out, CLI_QUANTIZED_SIZE, "%s, F32 rounded to %s first",
                 info.quantization, info.rounded);
    return true;
}

void cli_json_quantized(json_t *object, const dw_stream *stream)
{
    dw_stream_info info;
    dw_stream_get_info(stream, &info);
    if (!info.quantization)
        return;
    json_t *quantized = json_object();
    cli_json_text(quantized, "scheme", info.quantization);
    cli_json_text(quantized, "rounded", info.rounded);
    json_object_set_new(object, "quantized", quantized);
}

const char *cli_format_suspect(char out[CLI_SUSPECT_SIZE], uint64_t from, uint64_t end)
{
    if (from + 1 == end)
        snprintf(out, CLI_SUSPECT_SIZE,
                 "version %" PRIu64 " may differ from the trainer's weights", from);
    else
        snprintf(out, CLI_SUSPECT_SIZE,
                 "versions %" PRIu64 " to %" PRIu64
                 " may differ from the trainer's weights",
                 from, end - 1);
    return out;
}

void cli_print_suspect(uint64_t from, uint64_t end)
{
    char text[CLI_SUSPECT_SIZE];
    if (from > 0)
        cli_print_row("suspect", "%s; version %" PRIu64 " is right again",
                      cli_format_suspect(text, from, end), end);
}

json_t *cli_suspect_json(uint64_t from, uint64_t end)
{
    json_t *object = json_object();
    cli_json_count(object, "from", from);
    cli_json_count(object, "repaired", end);
    return object;
}

time_t cli_time(const char *rfc3339)
{
    struct tm t = {0};
    if (sscanf(rfc3339, "%4d-%2d-%2dT%2d:%2d:%2d", &t.tm_year, &t.tm_mon, &t.tm_mday,
               &t.tm_hour, &t.tm_min, &t.tm_sec) != 6)
        return -1;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    return timegm(&t);
}

double cli_age(const char *rfc3339)
{
    const time_t then = cli_time(rfc3339);
    if (then == (time_t)-1)
        return -1;
    double age = difftime(time(NULL), then);
    return age > 0 ? age : 0; /* the writer's clock may be ahead */
}

const char *cli_format_age(char out[CLI_AGE_SIZE], double seconds)
{
    if (seconds < 0)
        snprintf(out, CLI_AGE_SIZE, "unknown");
    else if (seconds < 120)
        snprintf(out, CLI_AGE_SIZE, "%.0f s", seconds);
    else if (seconds < 7200)
        snprintf(out, CLI_AGE_SIZE, "%.0f min", seconds / 60);
    else if (seconds < 172800)
        snprintf(out, CLI_AGE_SIZE, "%.1f h", seconds / 3600);
    else
        snprintf(out, CLI_AGE_SIZE, "%.0f days", seconds / 86400);
    return out;
}

dw_status cli_copy_shortcuts(dw_stream *stream, uint64_t first, uint64_t last,
                             dw_edge **shortcuts, size_t *n_shortcuts, dw_error *err)
{
    const dw_edge *lent = NULL;
    *shortcuts = NULL;
    *n_shortcuts = 0;
    dw_status status =
        dw_stream_shortcuts_to(stream, first, last, &lent, n_shortcuts, err);
    if (status != DW_OK || *n_shortcuts == 0)
        return status;
    *shortcuts = malloc(*n_shortcuts * sizeof **shortcuts);
    if (!*shortcuts)
        return dw_fail_memory(err, "");
    memcpy(*shortcuts, lent, *n_shortcuts * sizeof **shortcuts);
    return DW_OK;
}

dw_status cli_check_next(dw_stream *stream, uint64_t version, uint64_t head,
                         dw_error *err)
{
    dw_version_info info;
    if (version == DW_NO_VERSION || head == DW_NO_VERSION || version >= head ||
        head - version <= N_CHECKED)
        return DW_OK;
    dw_status status = dw_stream_version(stream, version + 1, &info, err);
    return status == DW_NOT_FOUND ? DW_OK : status; /* a restart or the floor is above */
}

void cli_json_base_sha256(json_t *object, const dw_version_info *info)
{
    char text[65] = "";
    for (size_t i = 0; info->base_sha256 && i < 32; i++)
        snprintf(text + 2 * i, 3, "%02x", info->base_sha256[i]);
    json_object_set_new(object, "base_sha256",
                        info->base_sha256 ? json_string(text) : json_null());
}

void cli_json_provenance(json_t *object, const dw_version_info *info)
{
    if (info->library[0])
        cli_json_text(object, "library", info->library);
    if (info->host[0])
        cli_json_text(object, "host", info->host);
}

/* ---- warnings ---- */

void cli_warn(const cli_session *s, json_t *list, const dw_error *warning)
{
    if (list) {
        json_array_append_new(list, cli_json_error(warning));
    } else if (s->json) {
        cli_report_error(s, "warning", NULL, warning);
    } else if (!s->quiet) {
        char where[DW_ERROR_WHERE_SIZE + sizeof "warning: "];
        snprintf(where, sizeof where, "warning: %s", warning->where);
        cli_print_message(where, "%s", warning->text);
    }
}

bool cli_warn_lost(const cli_session *s, const dw_stream *stream, json_t *list)
{
    dw_error err;
    if (dw_stream_check_lost(stream, &err) == DW_OK)
        return false;
    cli_warn(s, list, &err);
    return true;
}

void cli_warn_base(const cli_session *s, dw_stream *stream, const cli_keys *keys,
                   const char *base, json_t *list)
{
    dw_version_info info;
    dw_error err;
    if (!base || keys->trusted.n == 0 ||
        dw_stream_version(stream, 0, &info, NULL) != DW_OK ||
        info.content != DW_CONTENT_BASE || info.base_sha256)
        return;
    dw_fail(&err, DW_UNTRUSTED, base,
            "the stream has no SHA-256 of its base, only a digest, and somebody could "
            "make a checkpoint that has it. Use a checkpoint from a source that you "
            "trust");
    cli_warn(s, list, &err);
}

void cli_json_warnings(json_t *object, json_t *list)
{
    if (json_array_size(list) > 0)
        json_object_set(object, "warnings", list);
}

static json_t *file_json(const dw_file_info *file)
{
    char sha256[DW_SHA256_TEXT];
    json_t *row = json_object();
    dw_hex_encode(sha256, file->sha256, sizeof file->sha256);
    cli_json_text(row, "name", file->name);
    cli_json_count(row, "bytes", file->n_bytes);
    cli_json_text(row, "sha256", sha256);
    cli_json_count(row, "version", file->version);
    return row;
}

json_t *cli_files_json(const dw_file_info *files, size_t n_files, bool is_given)
{
    if (!is_given)
        return json_null();
    json_t *rows = json_array();
    for (size_t i = 0; i < n_files; i++)
        json_array_append_new(rows, file_json(&files[i]));
    return rows;
}
