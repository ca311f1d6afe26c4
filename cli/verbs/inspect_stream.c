#include "inspect_stream.h"

#include <inttypes.h>
#include <stdio.h>

#include <deltawire/stream.h>

#include "base/error.h"
#include "json_out.h"
#include "print.h"
#include "stream_info.h"

static void print_files(const dw_file_info *files, size_t n_files, bool is_given)
{
    if (!is_given)
        cli_print_row("files", "not recorded");
    else
        cli_print_row("files", "%zu", n_files);
    if (n_files == 0)
        return;
    printf("\n%15s  %7s  %s\n", "bytes", "version", "file");
    for (size_t i = 0; i < n_files; i++) {
        printf("%15" PRIu64 "  %7" PRIu64 "  ", files[i].n_bytes, files[i].version);
        cli_print_line(files[i].name);
    }
}

static json_t *version_json(const cli_stream *stream, const dw_version_info *info)
{
    json_t *object = json_object();
    cli_json_text(object, "kind", "stream");
    cli_json_text(object, "url", stream->url);
    cli_json_text(object, "stream", dw_stream_id(stream->stream));
    cli_json_count(object, "version", info->version);
    cli_json_text(object, "created", info->created);
    cli_json_text(object, "content", cli_content_name(info->content));
    cli_json_text(object, "step", info->step);
    cli_json_digest(object, "state", info->state);
    cli_json_count(object, "changed", info->n_changed);
    cli_json_count(object, "objects", info->n_objects);
    cli_json_count(object, "bytes", info->n_bytes);
    cli_json_quantized(object, stream->stream);
    return object;
}

static void print_version(const cli_stream *stream, const dw_version_info *info)
{
    char text[CLI_NUMBER_SIZE], quantized[CLI_QUANTIZED_SIZE];
    cli_print_text(stdout, stream->url);
    printf(": version %" PRIu64 " of a stream\n", info->version);
    cli_print_row("content", "%s",
                  info->restart ? "restart" : cli_content_name(info->content));
    cli_print_row("created", "%s", info->created);
    if (info->step[0])
        cli_print_text_row("step", info->step);
    cli_print_row("state", "%016" PRIx64, info->state);
    cli_print_row("changed", "%s", cli_format_count(text, info->n_changed));
    cli_print_row("objects", "%" PRIu64 ", %s", info->n_objects,
                  cli_format_size(text, info->n_bytes));
    if (cli_format_quantized(quantized, stream->stream))
        cli_print_row("quantised", "%s", quantized);
}

static dw_status show_version(const cli_stream *stream, const cli_session *s,
                              uint64_t version, dw_error *err)
{
    const dw_file_info *files;
    size_t n_files;
    bool is_given;
    dw_version_info info;
    json_t *object = NULL;
    dw_status status = dw_stream_version(stream->stream, version, &info, err);
    if (status != DW_OK)
        return status;
    if (s->json)
        object = version_json(stream, &info);
    else
        print_version(stream, &info);
    status = dw_stream_files(stream->stream, version, &files, &n_files, &is_given, err);
    if (status == DW_OK && s->json) {
        json_object_set_new(object, "files", cli_files_json(files, n_files, is_given));
        cli_json_print(object);
        return DW_OK;
    }
    json_decref(object);
    if (status == DW_OK)
        print_files(files, n_files, is_given);
    return status;
}

static dw_status write_file(const cli_stream *stream, uint64_t version, const char *name,
                            dw_error *err)
{
    const void *bytes;
    uint64_t n_bytes;
    dw_status status =
        dw_stream_read_file(stream->stream, version, name, &bytes, &n_bytes, err);
    if (status != DW_OK)
        return status;
    if (fwrite(bytes, 1, (size_t)n_bytes, stdout) != n_bytes || fflush(stdout) != 0)
        return dw_fail_errno(err, "stdout", "write");
    return DW_OK;
}

int cli_inspect_stream(cli_stream *stream, const cli_session *s, uint64_t version,
                       const char *name)
{
    dw_error err;
    int exit_code = cli_stream_open(stream, s);
    if (exit_code != 0)
        return exit_code;
    dw_status status =
        version == DW_NEWEST ? dw_stream_head(stream->stream, &version, &err) : DW_OK;
    if (status == DW_OK)
        status = name ? write_file(stream, version, name, &err)
                      : show_version(stream, s, version, &err);
    return status == DW_OK ? 0 : cli_stream_fail(s, &err, stream->url);
}
