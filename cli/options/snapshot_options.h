/* The options of pull and follow for the directory that they fill. */
#ifndef CLI_SNAPSHOT_OPTIONS_H
#define CLI_SNAPSHOT_OPTIONS_H

#include <deltawire/follow.h>

#include "command_line.h"

enum { CLI_OPT_READER_WAIT = 1792, CLI_OPT_NO_FILES };

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_SNAPSHOT_OPTIONS                                                             \
    {"no-files", no_argument, NULL, CLI_OPT_NO_FILES},                                   \
    {                                                                                    \
        "reader-wait", required_argument, NULL, CLI_OPT_READER_WAIT                      \
    }

/* Their lines in a verb's help. */
#define CLI_SNAPSHOT_HELP                                                                \
    "  --reader-wait S      wait at most S seconds for readers of the weights (10)\n"    \
    "  --no-files           do not install config.json, tokenizer files and such\n"

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_snapshot_option(dw_follow_options *options, const cli_session *s, int option);

#endif
