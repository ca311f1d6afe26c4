#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <deltawire/deltawire.h>

#include "command_line.h"
#include "commands.h"
#include "delta_report.h"
#include "fail.h"
#include "inspect_stream.h"
#include "json_out.h"
#include "print.h"
#include "quant_names.h"

/* ---- shapes ---- */

#define SHAPE_SIZE 256 /* longer ones are cut */

static const char *format_shape(char out[SHAPE_SIZE], uint32_t n_dims,
                                const uint64_t *dims)
{
    size_t n = (size_t)snprintf(out, SHAPE_SIZE, "[");
    for (uint32_t d = 0; d < n_dims && n < SHAPE_SIZE - 24; d++)
        n += (size_t)snprintf(out + n, SHAPE_SIZE - n, "%s%" PRIu64, d ? "," : "",
                              dims[d]);
    snprintf(out + n, SHAPE_SIZE - n, "]");
    return out;
}

static json_t *shape_json(uint32_t n_dims, const uint64_t *dims)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < n_dims; d++)
        json_array_append_new(shape, cli_json_integer(dims[d]));
    return shape;
}

/* ---- deltas ---- */

static void print_delta_tensors(const dw_delta *delta, size_t n_tensors)
{
    char shape[SHAPE_SIZE];
    printf("\n%12s %9s %11s %7s  %-6s %-16s %s\n", "changed", "density", "bytes", "bits",
           "dtype", "shape", "tensor");
    for (size_t i = 0; i < n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        printf("%12" PRIu64, t.n_changed);
        if (t.has_shape)
            printf(" %7.3f %%", 100 * cli_ratio((double)t.n_changed, (double)t.n_elems));
        else
            printf(" %9s", "?");
        printf(" %11" PRIu64 " %7.2f  %-6s %-16s ", t.n_bytes,
               cli_bits_a_change(t.n_bytes, t.n_changed), dw_dtype_name(t.dtype),
               t.has_shape ? format_shape(shape, t.n_dims, t.dims) : "?");
        cli_print_line(t.name);
    }
}

static json_t *delta_tensors_json(const dw_delta *delta, size_t n_tensors)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        json_t *object = json_object();
        cli_json_text(object, "name", t.name);
        cli_json_text(object, "dtype", dw_dtype_name(t.dtype));
        if (t.has_shape) {
            json_object_set_new(object, "shape", shape_json(t.n_dims, t.dims));
            cli_json_real(object, "density",
                          cli_ratio((double)t.n_changed, (double)t.n_elems));
        }
        cli_json_count(object, "changed", t.n_changed);
        cli_json_count(object, "bytes", t.n_bytes);
        cli_json_real(object, "bits_a_change", cli_bits_a_change(t.n_bytes, t.n_changed));
        json_array_append_new(list, object);
    }
    return list;
}

static void show_delta(const cli_session *s, const char *path, const dw_delta *delta,
                       bool tensors)
{
    cli_delta_report report = cli_delta_report_of(delta);
    if (s->json) {
        json_t *object = cli_delta_report_json(&report, 0);
        cli_json_text(object, "kind", "delta");
        cli_json_text(object, "path", path);
        if (tensors)
            json_object_set_new(object, "tensors",
                                delta_tensors_json(delta, report.info.n_tensors));
        cli_json_print(object);
        return;
    }
    cli_print_text(stdout, path);
    puts(": a delta");
    cli_delta_report_print(&report, 0);
    if (tensors)
        print_delta_tensors(delta, report.info.n_tensors);
}

/* ---- checkpoints ---- */

typedef struct totals {
    uint64_t n_elems, n_bytes;
    uint64_t by_dtype[DW_DTYPE_COUNT]; /* elements */
} totals;

static uint64_t count_elems(const dw_tensor *t)
{
    uint64_t n_elems = 0;
    dw_shape_size(t->dtype, t->n_dims, t->dims, &n_elems, NULL);
    return n_elems;
}

static totals sum_up(const dw_tensor *tensors, size_t n_tensors)
{
    totals sum = {0};
    for (size_t i = 0; i < n_tensors; i++) {
        uint64_t n_elems = count_elems(&tensors[i]);
        sum.n_elems += n_elems;
        sum.n_bytes += tensors[i].n_bytes;
        sum.by_dtype[tensors[i].dtype] += n_elems;
    }
    return sum;
}

static size_t count_scaled(const dw_tensor *tensors, size_t n_tensors)
{
    size_t n = 0;
    for (size_t i = 0; i < n_tensors; i++)
        n += cli_is_scale(tensors[i].name, tensors[i].dtype);
    return n;
}

static void print_checkpoint(const char *path, const dw_checkpoint *ckpt, bool pending,
                             bool tensors)
{
    size_t n_tensors;
    const dw_tensor *list = dw_checkpoint_tensors(ckpt, &n_tensors);
    const totals sum = sum_up(list, n_tensors);
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE], shape[SHAPE_SIZE];
    cli_print_text(stdout, path);
    puts(": a checkpoint");
    cli_print_row("tensors", "%zu", n_tensors);
    cli_print_row("elements", "%s", cli_format_count(a, sum.n_elems));
    cli_print_row("bytes", "%s (%s)", cli_format_count(a, sum.n_bytes),
                  cli_format_size(b, sum.n_bytes));
    cli_print_row("files", "%zu", dw_checkpoint_file_count(ckpt));
    const dw_quant_scheme scheme = cli_find_scheme(list, n_tensors);
    if (scheme != DW_QUANT_NONE)
        cli_print_row("quantised", "%s, %zu tensors", dw_quant_scheme_name(scheme),
                      count_scaled(list, n_tensors));
    if (pending)
        cli_print_row("pending", "an apply was interrupted, or is under way: this is a "
                                 "mix of two versions");
    for (int dtype = 0; dtype < DW_DTYPE_COUNT; dtype++)
        if (sum.by_dtype[dtype] > 0)
            cli_print_row(dw_dtype_name((dw_dtype)dtype), "%s elements",
                          cli_format_count(a, sum.by_dtype[dtype]));
    if (!tensors)
        return;
    printf("\n%15s  %-8s %-16s %s\n", "bytes", "dtype", "shape", "tensor");
    for (size_t i = 0; i < n_tensors; i++) {
        printf("%15" PRIu64 "  %-8s %-16s ", list[i].n_bytes,
               dw_dtype_name(list[i].dtype),
               format_shape(shape, list[i].n_dims, list[i].dims));
        cli_print_line(list[i].name);
    }
}

static void print_checkpoint_json(const char *path, const dw_checkpoint *ckpt,
                                  bool pending, bool tensors)
{
    size_t n_tensors;
    const dw_tensor *list = dw_checkpoint_tensors(ckpt, &n_tensors);
    const totals sum = sum_up(list, n_tensors);
    json_t *object = json_object(), *dtypes = json_object();
    cli_json_text(object, "kind", "checkpoint");
    cli_json_text(object, "path", path);
    cli_json_count(object, "n_tensors", n_tensors);
    cli_json_count(object, "elements", sum.n_elems);
    cli_json_count(object, "bytes", sum.n_bytes);
    cli_json_count(object, "files", dw_checkpoint_file_count(ckpt));
    const dw_quant_scheme scheme = cli_find_scheme(list, n_tensors);
    if (scheme != DW_QUANT_NONE) {
        cli_json_text(object, "quantized", dw_quant_scheme_name(scheme));
        cli_json_count(object, "quantized_tensors", count_scaled(list, n_tensors));
    }
    cli_json_flag(object, "pending", pending);
    for (int dtype = 0; dtype < DW_DTYPE_COUNT; dtype++)
        if (sum.by_dtype[dtype] > 0)
            cli_json_count(dtypes, dw_dtype_name((dw_dtype)dtype), sum.by_dtype[dtype]);
    json_object_set_new(object, "dtypes", dtypes);
    json_t *rows = tensors ? json_array() : NULL;
    for (size_t i = 0; rows && i < n_tensors; i++) {
        json_t *row = json_object();
        cli_json_text(row, "name", list[i].name);
        cli_json_text(row, "dtype", dw_dtype_name(list[i].dtype));
        json_object_set_new(row, "shape", shape_json(list[i].n_dims, list[i].dims));
        cli_json_count(row, "bytes", list[i].n_bytes);
        json_array_append_new(rows, row);
    }
    if (rows)
        json_object_set_new(object, "tensors", rows);
    cli_json_print(object);
}

/* ---- the verb ---- */

/* A delta is a safetensors file too, so it also opens as a checkpoint. dw_delta_open
 * returns DW_UNSUPPORTED both for a file that is no delta and for a delta of a newer
 * format. The metadata distinguishes them. */
static bool is_delta(const dw_checkpoint *ckpt, const char *path, dw_status delta_status)
{
    if (dw_checkpoint_file_count(ckpt) != 1 ||
        strcmp(dw_checkpoint_file(ckpt, 0), path) != 0)
        return false; /* a directory or an index */
    const char *format = dw_checkpoint_metadata(ckpt, "format");
    return delta_status != DW_UNSUPPORTED ||
           (format && strncmp(format, "deltawire/", strlen("deltawire/")) == 0);
}

static int show_checkpoint(const cli_session *s, const char *path,
                           const dw_checkpoint *ckpt, bool tensors)
{
    dw_error err;
    bool pending;
    if (dw_checkpoint_pending(path, &pending, &err) != DW_OK)
        return cli_fail(s, &err, path, NULL);
    (s->json ? print_checkpoint_json : print_checkpoint)(path, ckpt, pending, tensors);
    return 0;
}

static int inspect(const cli_session *s, const char *path, bool tensors)
{
    dw_error err, delta_err;
    dw_checkpoint *ckpt;
    dw_delta *delta;
    int exit_code = 0;
    if (dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, &err) != DW_OK)
        return cli_fail(s, &err, path, NULL);
    dw_status status = dw_delta_open(&delta, path, &delta_err);
    if (status == DW_OK)
        show_delta(s, path, delta, tensors);
    else if (is_delta(ckpt, path, status))
        exit_code = cli_fail(s, &delta_err, path, NULL);
    else
        exit_code = show_checkpoint(s, path, ckpt, tensors);
    dw_delta_close(delta);
    dw_checkpoint_close(ckpt);
    return exit_code;
}

typedef struct arguments {
    bool tensors;
    cli_stream stream;
    uint64_t version;
    const char *name;
} arguments;

static int run(cli_session *s)
{
    arguments a = {.version = DW_NEWEST};
    cli_parse(s, &a);
    const bool for_stream =
        a.version != DW_NEWEST || a.name || cli_any_given(cli_stream_options, &a.stream);
    a.stream.url = s->args[0];
    const bool is_stream = cli_is_stream(a.stream.url);
    if (is_stream && a.tensors)
        cli_usage_error(s, "--tensors is for deltas and checkpoints, not for streams");
    if (!is_stream && for_stream)
        cli_usage_error(s,
                        "--at, --file and the options of stores are for "
                        "streams, and %s is none",
                        a.stream.url);
    const int exit_code = is_stream ? cli_inspect_stream(&a.stream, s, a.version, a.name)
                                    : inspect(s, a.stream.url, a.tensors);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(FLAG, arguments, tensors, "tensors", NULL, "a row for each tensor")},
    {CLI_OPTION(VERSION, arguments, version, "at", "N",
                "the version of a stream; default: the newest")},
    {CLI_OPTION(TEXT, arguments, name, "file", "NAME",
                "write this companion file to stdout")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_inspect = {
    .name = "inspect",
    .summary = "show what a delta, a checkpoint or a version holds",
    .usage = "FILE [--tensors]\n"
             "URL [--at N] [--file NAME] [OPTION...]",
    .about =
        "Shows what a delta, or a checkpoint (file, index file or directory), holds. "
        "Only headers and checksums are read. Of a stream it shows a version and its "
        "companion files, such as config.json.",
    .examples = "  deltawire inspect step_000007.safetensors --tensors\n"
                "  deltawire inspect model/ --json\n"
                "  deltawire inspect s3://bucket/run --file config.json\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
