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

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"publish", dw_cmd_publish, "add a checkpoint to a stream as its next version"},
    {"pull", dw_cmd_pull, "bring a directory to a version of a stream"},
    {"follow", dw_cmd_follow, "keep a directory at the newest version"},
    {"log", dw_cmd_log, "list the versions of a stream"},
    {"status", dw_cmd_status, "show a stream's size and its followers"},
    {"serve-status", dw_cmd_serve_status, "show a stream in a browser, and as metrics"},
    {"stats", dw_cmd_stats, "analyse the steps of a stream, or deltas on disk"},
    {"squash", dw_cmd_squash, "add a shortcut to a version of a stream"},
    {"repair", dw_cmd_repair, "let a stream go on whose newest version is broken"},
    {"gc", dw_cmd_gc, "remove old versions of a stream"},
    {"cp", dw_cmd_cp, "copy a stream to another store"},
    {"mirror", dw_cmd_mirror, "turn one system's versions into another's, as they come"},
    {"cache", dw_cmd_cache, "list and remove the copies of models kept on this machine"},
    {"keygen", dw_cmd_keygen, "make a key to sign versions with"},
    {"diff", dw_cmd_diff, "write what changed between two checkpoints"},
    {"apply", dw_cmd_apply, "bring a checkpoint to a delta's new version"},
    {"inspect", dw_cmd_inspect, "show what a delta, a checkpoint or a version holds"},
    {"verify", dw_cmd_verify, "check a checkpoint, or a whole stream"},
    {"recover", dw_cmd_recover, "finish an apply that was interrupted"},
    {"convert", dw_cmd_convert, "write a delta in another codec"},
    {"synth", dw_cmd_synth, "make a synthetic RL run to try things on"},
    {"bench", dw_cmd_bench, "measure sizes and speeds"},
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

static void print_help(FILE *out)
{
    fputs("deltawire ships the weights that changed, exact to the bit.\n"
          "\n"
          "usage: deltawire VERB [ARGUMENT...]     deltawire VERB --help shows examples\n"
          "       deltawire --version [--json]\n"
          "\n",
          out);
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(out, "  %-12s %s\n", verbs[i].name, verbs[i].summary);
    fputs(
        "\n"
        "Every verb takes\n"
        "  --json        one JSON object on stdout, errors too\n"
        "  --threads N   threads to use; 0, the default: all cores\n"
        "  --quiet, -q   print only errors, and what a verb exists to show\n"
        "  --help, -h\n"
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
        "A URL names a stream: s3://BUCKET/PREFIX, hf://buckets/NAMESPACE/NAME/PATH,\n"
        "file:///DIR or a path.\n",
        out);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (strcmp(name, verbs[i].name) == 0)
            return &verbs[i];
    return NULL;
}

static int refuse_verb(int argc, char **argv)
{
    const cli_session s = cli_session_start(argc, argv, NULL);
    dw_error err;
    dw_fail(&err, DW_INVALID, "", "no verb '%s'", argv[1]);
    return cli_fail(&s, &err, NULL, "deltawire --help");
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
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return finish_output(0);
    }
    const struct verb *verb = find_verb(argv[1]);
    if (!verb)
        return finish_output(refuse_verb(argc, argv));
    const char *kernel = getenv("DELTAWIRE_KERNEL");
    if (kernel && strcmp(kernel, dw_kernel_name()) != 0)
        cli_print_message("", "no kernels '%s' on this machine: using %s", kernel,
                          dw_kernel_name());
    cli_catch_signals();
    return finish_output(verb->run(argc - 1, argv + 1));
}
