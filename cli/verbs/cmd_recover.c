
#include <deltawire/deltawire.h>

#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"

static int run(cli_session *s)
{
    cli_parse(s, NULL);
    const char *path = s->args[0];
    dw_error err;
    bool recovered;
    if (dw_checkpoint_recover(path, s->n_threads, &recovered, &err) != DW_OK)
        return cli_fail(s, &err, path, NULL);
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "checkpoint", path);
        cli_json_flag(object, "recovered", recovered);
        cli_json_print(object);
    } else if (!s->quiet) {
        cli_print_text(stdout, path);
        puts(recovered ? ": the interrupted apply is finished" : ": nothing to recover");
    }
    return 0;
}

const cli_verb cli_verb_recover = {
    .name = "recover",
    .summary = "finish an apply that was interrupted",
    .usage = "CKPT",
    .about = "Finishes an apply that was interrupted after it had begun to write. If "
             "there was none, it does nothing. Running `deltawire apply` again does the "
             "same first.",
    .examples = "  deltawire recover model/\n",
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
