
#include <deltawire/deltawire.h>

#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"

static const char help[] =
    "usage: deltawire recover CKPT\n"
    "\n"
    "Finishes an apply that was interrupted after it had begun to write. If there was\n"
    "none, it does nothing. Running `deltawire apply` again does the same first.\n"
    "\n"
    "  --json  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire recover model/\n";

int dw_cmd_recover(int argc, char **argv)
{
    static const struct option options[] = {CLI_COMMON_OPTIONS};
    cli_session s = cli_session_start(argc, argv, help);
    while (cli_next_option(&s, argc, argv, options) != -1)
        ;
    cli_expect_arguments(&s, argc, 1, 1);
    const char *path = argv[optind];
    dw_error err;
    bool recovered;
    if (dw_checkpoint_recover(path, s.n_threads, &recovered, &err) != DW_OK)
        return cli_fail(&s, &err, path, NULL);
    if (s.json) {
        json_t *object = json_object();
        cli_json_text(object, "checkpoint", path);
        json_object_set_new(object, "recovered", json_boolean(recovered));
        cli_json_print(object);
    } else if (!s.quiet) {
        cli_print_text(stdout, path);
        puts(recovered ? ": the interrupted apply is finished" : ": nothing to recover");
    }
    return 0;
}
