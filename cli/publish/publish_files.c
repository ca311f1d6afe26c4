#include "publish_files.h"

#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "print.h"
#include "stream_info.h"
#include "inner.h"

const cli_option cli_with_options[] = {
    {CLI_OPTION(LIST, cli_with, with, "with", "GLOB",
                "also publish these files beside the weights, such as *.py; may be "
                "repeated")},
    {CLI_OPTION(
        LIST, cli_with, without, "without", "GLOB",
        "leave these out; '*': publish no files. Default, if CKPT is a directory: "
        "config.json, tokenizer files, chat templates ...")},
    {0},
};

const cli_option cli_writer_options[] = {
    {CLI_OPTION(FLAG, dw_publish_options, new_key, "new-key", NULL,
                "allow another key, or none, for a stream that is signed")},
    {CLI_OPTION(FLAG, dw_publish_options, single_writer, "single-writer", NULL,
                "accept a store that cannot keep two writers apart; you must ensure that "
                "there is only one")},
    {CLI_OPTION(FLAG, dw_publish_options, no_provenance, "no-provenance", NULL,
                "do not record this machine's name and process, and the library's "
                "version")},
    {CLI_OPTION(TEXT, dw_publish_options, job, "job", "NAME",
                "names this job: a writer of the same one is taken over from at once; "
                "default: $TORCHELASTIC_RUN_ID, $SLURM_JOB_ID")},
    {CLI_OPTION(FLAG, dw_publish_options, take_over, "take-over", NULL,
                "do not wait until another writer has written nothing for a minute")},
    {0},
};

static void print_notice(void *context, const char *line)
{
    cli_print_message(context, "%s", line);
}

void cli_writer_notices(dw_publish_options *options, const cli_session *s,
                        const char *url)
{
    options->notice = s->quiet ? NULL : print_notice;
    options->notice_context = (void *)(uintptr_t)url;
}

/* The directory of PATH, a file. Free it with dw_free. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = dw_copy_string(slash ? path : ".");
    if (dir && slash)
        dir[slash == path ? 1 : slash - path] = '\0';
    return dir;
}

/* Whether --without '*' asks for a version without files. */
static bool takes_none(const cli_with *with)
{
    for (size_t i = 0; i < with->without.n; i++)
        if (strcmp(with->without.items[i], "*") == 0)
            return true;
    return false;
}

dw_companion_rules cli_with_rules(const cli_with *with)
{
    dw_companion_rules rules;
    dw_companion_rules_init(&rules);
    rules.with = with->with.items;
    rules.n_with = with->with.n;
    rules.without = with->without.items;
    rules.n_without = with->without.n;
    return rules;
}

dw_status cli_files_load(dw_companions **out, dw_publish_options *options,
                         const cli_with *with, const char *checkpoint, dw_error *err)
{
    struct stat s;
    const bool is_dir = stat(checkpoint, &s) == 0 && S_ISDIR(s.st_mode);
    *out = NULL;
    if (!is_dir && with->with.n == 0 && !takes_none(with))
        return DW_OK;
    dw_companion_rules rules = cli_with_rules(with);
    rules.no_defaults = !is_dir;
    char *parent = is_dir ? NULL : parent_of(checkpoint);
    if (!is_dir && !parent)
        return dw_fail_memory(err, checkpoint);
    dw_status status = dw_companions_load(out, is_dir ? checkpoint : parent, &rules, err);
    dw_free(parent);
    if (status != DW_OK)
        return status;
    options->files = dw_companions_files(*out, &options->n_files);
    options->has_files = options->n_files > 0 || with->with.n + with->without.n > 0;
    return DW_OK;
}

static bool matches_any(const char *glob, const dw_publish_options *options)
{
    dw_companion_rules rules;
    dw_companion_rules_init(&rules);
    rules.with = &glob;
    rules.n_with = 1;
    rules.no_defaults = true;
    for (size_t i = 0; i < options->n_files; i++)
        if (dw_companion_takes(&rules, options->files[i].name))
            return true;
    return false;
}

void cli_with_warn(const cli_with *with, const dw_publish_options *options,
                   const cli_session *s)
{
    for (size_t i = 0; !s->json && i < with->with.n; i++) { /* one object is printed */
        dw_error warning;
        if (matches_any(with->with.items[i], options))
            continue;
        dw_fail(&warning, DW_NOT_FOUND, with->with.items[i],
                "none of the files that are published matches this --with");
        cli_warn(s, NULL, &warning);
    }
}

dw_status cli_files_same(bool *same, const dw_publish_options *options, dw_stream *stream,
                         uint64_t version, dw_error *err)
{
    const dw_file_info *there;
    size_t n;
    bool is_given;
    *same = true;
    if (!options->has_files)
        return DW_OK;
    dw_status status = dw_stream_files(stream, version, &there, &n, &is_given, err);
    *same = status == DW_OK && is_given && n == options->n_files;
    for (size_t i = 0; status == DW_OK && *same && i < n; i++) {
        const dw_file *mine = &options->files[i]; /* both are ordered by name */
        uint8_t sha256[DW_SHA256_BYTES];
        *same =
            strcmp(mine->name, there[i].name) == 0 && mine->n_bytes == there[i].n_bytes;
        if (*same)
            status = dw_sha256_of(sha256, mine->bytes, (size_t)mine->n_bytes, err);
        *same = *same && status == DW_OK &&
                memcmp(sha256, there[i].sha256, sizeof sha256) == 0;
    }
    return status;
}
