/* The options of pull and follow for the directory that they fill. */
#ifndef CLI_FOLLOW_OPTIONS_H
#define CLI_FOLLOW_OPTIONS_H

#include <deltawire/follow.h>

#include "option_table.h"

#define CLI_INTO_HELP                                                                    \
    "the checkpoint directory; made, with those above it, if it is not there"

extern const cli_option cli_follow_options[]; /* of a dw_follow_options */

#endif
