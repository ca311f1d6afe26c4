#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

#include "base/error.h"
#include "commands.h"
#include "fail.h"
#include "print.h"
#include "progress_bar.h"
#include "version_report.h"

static const cli_verb *const verbs[] = {
    &cli_verb_publish, &cli_verb_pull,    &cli_verb_follow,  &cli_verb_check,
    &cli_verb_ls,      &cli_verb_log,     &cli_verb_status,  &cli_verb_serve_status,
    &cli_verb_stats,   &cli_verb_compact, &cli_verb_repair,  &cli_verb_gc,
    &cli_verb_cp,      &cli_verb_mirror,  &cli_verb_cache,   &cli_verb_keygen,
    &cli_verb_diff,    &cli_verb_apply,   &cli_verb_inspect, &cli_verb_verify,
    &cli_verb_recover, &cli_verb_convert, &cli_verb_synth,   &cli_verb_bench,
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

static void print_help(FILE *out)
{
    fputs("deltawire ships the weights that changed, exact to the bit.\n"
          "\n"
          "usage: deltawire VERB [ARGUMENT...]     deltawire help VERB shows examples\n"
          "       deltawire --version [--json]\n"
          "\n",
          out);
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(out, "  %-12s %s\n", verbs[i]->name, verbs[i]->summary);
    fputs(
        "\n"
        "Every verb takes --json, --threads N, --quiet (-q) and --help (-h).\n"
        "\n"
        "Exit codes\n"
        "  0  done                         7  unsupported by this build or codec\n"
        "  1  other failure                8  conflict: somebody else holds or made it\n"
        "  2  wrong usage                  9  unavailable: the store fails, try later\n"
        "  3  corrupt: fetch it again     10  denied: credentials are missing or "
        "refused\n"
        "  4  stale: not the base version 11  untrusted: a foreign key, or rolled back\n"
        "  5  mismatch: another model's   128 + N  stopped by signal N, e.g. 130\n"
        "  6  not found, or refused by the system\n"
        "\n"
        "A URL names a stream: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,\n"
        "hf://buckets/NAMESPACE/NAME/PATH, file:///DIR or a path.\n",
        out);
}

static const cli_verb *find_verb(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (strcmp(name, verbs[i]->name) == 0)
            return verbs[i];
    return NULL;
}

static int refuse_verb(char **words)
{
    const cli_session s = cli_session_start(NULL, words);
    dw_error err;
    dw_fail(&err, DW_INVALID, "", "no verb '%s'", words[0]);
    return cli_fail(&s, &err, NULL, "deltawire --help");
}

/* `deltawire help`, also of one verb. */
static int show_help(char **words)
{
    const cli_verb *verb = words[0] ? find_verb(words[0]) : NULL;
    if (words[0] && !verb)
        return refuse_verb(words);
    if (verb)
        cli_print_verb_help(verb);
    else
        print_help(stdout);
    return 0;
}

/* For the completion and the manual page: the verbs, or the options of one. */
static int list_options(const char *name)
{
    const cli_verb *verb = name ? find_verb(name) : NULL;
    for (size_t i = 0; !name && i < N_VERBS; i++)
        puts(verbs[i]->name);
    if (verb)
        cli_print_options(verb);
    return name && !verb ? CLI_EXIT_USAGE : 0;
}

/* It is a failure too if the output could not be written, for example to a full disk. */
static int finish_output(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    cli_print_message("stdout", "cannot write");
    return exit_code != 0 ? exit_code : CLI_EXIT_IO;
}

/* glibc returns freed blocks to the system only above a threshold. It raises the
 * threshold to the largest block that was freed, up to 32 MiB, so the codec's scratch
 * memory would stay. */
static void give_memory_back(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
}

int main(int argc, char **argv)
{
    static char line[1024];
    give_memory_back();
    /* write whole lines, so that they do not mix with those of other processes */
    setvbuf(stderr, line, _IOLBF, sizeof line);
    if (argc < 2) {
        print_help(stderr);
        return CLI_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        cli_print_version(argc > 2 && strcmp(argv[2], "--json") == 0);
        return finish_output(0);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return finish_output(show_help(argv + argc));
    if (strcmp(argv[1], "help") == 0)
        return finish_output(show_help(argv + 2));
    if (strcmp(argv[1], "--options") == 0)
        return finish_output(list_options(argv[2]));
    const cli_verb *verb = find_verb(argv[1]);
    if (!verb)
        return finish_output(refuse_verb(argv + 1));
    const char *kernel = getenv("DELTAWIRE_KERNEL");
    if (kernel && strcmp(kernel, dw_kernel_name()) != 0)
        cli_print_message("", "no kernels '%s' on this machine: using %s", kernel,
                          dw_kernel_name());
    cli_catch_signals();
    cli_session session = cli_session_start(verb, argv + 1);
    return finish_output(verb->run(&session));
}
