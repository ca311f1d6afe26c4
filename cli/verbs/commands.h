/* The verbs. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "option_table.h"

extern const cli_verb cli_verb_publish, cli_verb_pull, cli_verb_follow, cli_verb_check,
    cli_verb_ls, cli_verb_log, cli_verb_status, cli_verb_serve_status, cli_verb_stats,
    cli_verb_compact, cli_verb_repair, cli_verb_gc, cli_verb_cp, cli_verb_mirror,
    cli_verb_cache, cli_verb_keygen, cli_verb_diff, cli_verb_apply, cli_verb_inspect,
    cli_verb_verify, cli_verb_recover, cli_verb_convert, cli_verb_synth, cli_verb_bench;

#endif
