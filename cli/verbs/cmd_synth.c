#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deltawire/deltawire.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "command_line.h"
#include "commands.h"
#include "delta_report.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "synth.h"
#include "synth_model.h"

#define MAX_STEPS 999999
#define DELTAS    "deltas"

typedef struct arguments {
    const char *dir;
    synth_options synth;
    uint64_t n_steps;
    uint64_t max_shard_bytes;
    const char *write, *dtype; /* as given */
    bool write_deltas, write_checkpoints;
    cli_codec_choice choice;
    dw_diff_options diff;
    cli_progress bar; /* of one pass over the weights */
} arguments;

static void parse_write(arguments *a, const cli_session *s, const char *what)
{
    a->write_deltas = strcmp(what, "checkpoints") != 0;
    a->write_checkpoints = strcmp(what, "deltas") != 0;
    if (a->write_deltas && a->write_checkpoints && strcmp(what, "both") != 0)
        cli_usage_error(s, "--write: '%s' is none of deltas, checkpoints, both", what);
}

static dw_dtype parse_dtype(const cli_session *s, const char *name)
{
    if (strcmp(name, "bf16") != 0 && strcmp(name, "f32") != 0)
        cli_usage_error(s, "--dtype: '%s' is neither bf16 nor f32", name);
    return name[0] == 'b' ? DW_BF16 : DW_F32;
}

/* ---- files ---- */

/* Makes a new directory, so that a run never mixes with an older one. */
static dw_status make_directory(const char *path, dw_error *err)
{
    return mkdir(path, 0777) == 0 ? DW_OK
                                  : dw_fail_errno(err, path, "make a new directory");
}

/* Into DIR itself with shards, else into a file in it. */
static dw_status write_weights(const arguments *a, const char *dir,
                               const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    const dw_pair metadata = {"format", "pt"}; /* the stock loaders require it */
    const dw_checkpoint_write_options options = {.struct_bytes = sizeof options,
                                                 .metadata = &metadata,
                                                 .n_metadata = 1,
                                                 .max_shard_bytes = a->max_shard_bytes};
    if (a->max_shard_bytes > 0)
        return dw_checkpoint_write(dir, tensors, n_tensors, &options, err);
    char *path = dw_join_path(dir, "model.safetensors");
    dw_status status = path ? dw_checkpoint_write(path, tensors, n_tensors, &options, err)
                            : dw_fail_memory(err, dir);
    dw_free(path);
    return status;
}

static dw_status write_checkpoint(const arguments *a, const char *name,
                                  const dw_tensor *tensors, size_t n_tensors,
                                  dw_error *err)
{
    char *dir = dw_join_path(a->dir, name);
    dw_status status = dir ? make_directory(dir, err) : dw_fail_memory(err, a->dir);
    if (status == DW_OK)
        status = write_weights(a, dir, tensors, n_tensors, err);
    if (status != DW_OK && dir)
        rmdir(dir); /* succeeds if it is empty */
    dw_free(dir);
    return status;
}

/* DIR/deltas/NAME.safetensors */
static dw_status write_delta(const arguments *a, const char *name, const dw_delta *delta,
                             dw_error *err)
{
    char file[64];
    snprintf(file, sizeof file, DELTAS "/%s.safetensors", name);
    char *path = dw_join_path(a->dir, file);
    dw_status status =
        path ? dw_delta_save(delta, path, err) : dw_fail_memory(err, a->dir);
    dw_free(path);
    return status;
}

/* The directories, and the base. */
static dw_status prepare(const arguments *a, const synth_run *run, dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    if (mkdir(a->dir, 0777) != 0 && errno != EEXIST)
        return dw_fail_errno(err, a->dir, "make the directory");
    dw_status status = write_checkpoint(a, "base", tensors, n_tensors, err);
    if (status != DW_OK || !a->write_deltas)
        return status;
    char *deltas = dw_join_path(a->dir, DELTAS);
    status = deltas ? make_directory(deltas, err) : dw_fail_memory(err, a->dir);
    dw_free(deltas);
    return status;
}

/* ---- steps ---- */

typedef struct step_report {
    synth_step_stats stats;
    cli_delta_report delta;
} step_report;

static dw_status do_step(step_report *out, arguments *a, const cli_session *s,
                         synth_run *run, uint64_t step, dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    char name[32];
    snprintf(name, sizeof name, "step_%06" PRIu64, step);
    a->bar = cli_progress_start(s, "training");
    dw_status status = synth_run_step(run, &out->stats, err);
    cli_progress_end(&a->bar);
    if (status != DW_OK)
        return status;

    dw_diff_options diff = a->diff;
    diff.base_version = step - 1;
    diff.new_version = step;
    dw_delta *delta;
    status = dw_delta_diff(&delta, synth_run_before(run), tensors, n_tensors, &diff, err);
    if (status != DW_OK)
        return status;
    out->delta = cli_delta_report_of(delta);
    if (a->write_deltas)
        status = write_delta(a, name, delta, err);
    if (status == DW_OK && a->write_checkpoints)
        status = write_checkpoint(a, name, tensors, n_tensors, err);
    dw_delta_close(delta);
    return status;
}

static void print_step(const step_report *r, uint64_t step)
{
    char bytes[CLI_NUMBER_SIZE];
    const double n = (double)r->stats.n_changed;
    if (step == 1)
        printf("%6s %9s %9s %8s %10s %6s\n", "step", "changed", "one ulp", "again",
               "bytes", "bits");
    printf("%6" PRIu64 " %7.3f %% %7.1f %% %6.1f %% %10s %6.2f\n", step,
           100 * cli_density(&r->delta), 100 * cli_ratio((double)r->stats.n_one_ulp, n),
           100 * cli_ratio((double)r->stats.n_again, n),
           cli_format_size(bytes, r->delta.info.n_bytes),
           cli_bits_a_change(r->delta.info.n_bytes, r->delta.info.n_changed));
    fflush(stdout);
}

static json_t *step_json(const step_report *r, uint64_t step)
{
    const double n = (double)r->stats.n_changed;
    json_t *object = json_object();
    cli_json_count(object, "step", step);
    cli_json_count(object, "changed", r->stats.n_changed);
    cli_json_real(object, "density", cli_density(&r->delta));
    cli_json_real(object, "one_ulp", cli_ratio((double)r->stats.n_one_ulp, n));
    cli_json_real(object, "again", cli_ratio((double)r->stats.n_again, n));
    cli_json_count(object, "bytes", r->delta.info.n_bytes);
    cli_json_real(object, "bits_a_change",
                  cli_bits_a_change(r->delta.info.n_bytes, r->delta.info.n_changed));
    cli_json_digest(object, "new_state", r->delta.info.new_state);
    return object;
}

/* Adds a row for each step to STEPS. If that is NULL, prints them, unless S is quiet. */
static dw_status run_steps(arguments *a, const cli_session *s, synth_run *run,
                           json_t *steps, dw_error *err)
{
    dw_status status = prepare(a, run, err);
    for (uint64_t step = 1; status == DW_OK && step <= a->n_steps; step++) {
        step_report report;
        status = cli_check_signal(err);
        if (status == DW_OK)
            status = do_step(&report, a, s, run, step, err);
        if (status != DW_OK)
            break;
        if (steps)
            json_array_append_new(steps, step_json(&report, step));
        else if (!s->quiet)
            print_step(&report, step);
    }
    return status;
}

static int run(cli_session *s)
{
    arguments a = {.synth = {.n_params = 16000000, .lr = 1e-6},
                   .n_steps = 12,
                   .write = "deltas",
                   .dtype = "bf16"};
    dw_diff_options_init(&a.diff);
    cli_parse(s, &a);
    parse_write(&a, s, a.write);
    a.synth.dtype = parse_dtype(s, a.dtype);
    if (a.synth.n_params < SYNTH_MIN_PARAMS || a.synth.n_params > 1000000000000)
        cli_usage_error(s, "--params: from %d to 1T", SYNTH_MIN_PARAMS);
    if (a.n_steps > MAX_STEPS)
        cli_usage_error(s, "--steps: at most %d", MAX_STEPS);
    cli_choose_codec(s, a.choice, &a.diff.codec, &a.diff.trl_layout);
    a.synth.n_threads = a.diff.n_threads = s->n_threads;
    dw_error err;
    synth_run *model;
    a.bar = cli_progress_start(s, "making the model");
    a.synth.progress = cli_progress_hook(&a.bar);
    dw_status status = synth_run_new(&model, &a.synth, &err);
    cli_progress_end(&a.bar);
    if (status != DW_OK)
        return cli_fail(s, &err, NULL, NULL);
    json_t *steps = s->json ? json_array() : NULL;
    status = run_steps(&a, s, model, steps, &err);
    synth_run_free(model);
    if (status != DW_OK) {
        json_decref(steps);
        return cli_fail(s, &err, a.dir, NULL);
    }
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "dir", a.dir);
        cli_json_count(object, "seed", a.synth.seed);
        json_object_set_new(object, "steps", steps);
        cli_json_print(object);
    }
    return 0;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, dir, "output", "DIR", "the directory; made if missing"),
     .letter = 'o', .required = true},
    {CLI_OPTION(SIZE, arguments, synth.n_params, "params", "N",
                "parameters, about: 16M, 0.6B (16M)")},
    {CLI_OPTION(COUNT, arguments, n_steps, "steps", "N", "steps to make (12)")},
    {CLI_OPTION(COUNT, arguments, synth.seed, "seed", "N",
                "same options, same bytes (0)")},
    {CLI_OPTION(POSITIVE, arguments, synth.lr, "lr", "X", "learning rate (1e-6)")},
    {CLI_OPTION(TEXT, arguments, write, "write", "WHAT",
                "deltas (the default), checkpoints or both")},
    {CLI_OPTION(SIZE, arguments, max_shard_bytes, "shard", "SIZE",
                "checkpoints in files of at most SIZE bytes and an index")},
    {CLI_OPTION(TEXT, arguments, dtype, "dtype", "DTYPE", "bf16 or f32 (bf16)")},
    {CLI_GROUP("codec", arguments, choice, cli_codec_choice, cli_codec_options)},
    {0},
};

const cli_verb cli_verb_synth = {
    .name = "synth",
    .summary = "make a synthetic RL run to try things on",
    .usage = "-o DIR --params N --steps N [OPTION...]",
    .about = "Makes a synthetic RL run with the statistics of real ones: DIR/base, and "
             "the deltas DIR/deltas/step_000001.safetensors ... or the checkpoints "
             "DIR/step_000001 ...",
    .examples =
        "  deltawire synth -o run --params 16M --steps 12\n"
        "  deltawire synth -o run --params 100M --steps 3 --write both --shard 50M\n",
    .options = options,
    .run = run,
};
