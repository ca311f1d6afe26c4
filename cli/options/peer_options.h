/* Options of mirror for what it writes: --as and the options that go with it. */
#ifndef CLI_PEER_OPTIONS_H
#define CLI_PEER_OPTIONS_H

#include "compat/peer_publish.h"

#include "command_line.h"

enum {
    CLI_OPT_AS = 1280,
    CLI_OPT_TRL,
    CLI_OPT_CODEC,
    CLI_OPT_CHECKSUM,
    CLI_OPT_WHOLE_EVERY,
    CLI_OPT_MAX_SHARD
};

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_PEER_OPTIONS                                                                 \
    {"as", required_argument, NULL, CLI_OPT_AS},                                         \
        {"trl", required_argument, NULL, CLI_OPT_TRL},                                   \
        {"codec", required_argument, NULL, CLI_OPT_CODEC},                               \
        {"checksum", required_argument, NULL, CLI_OPT_CHECKSUM},                         \
        {"whole-every", required_argument, NULL, CLI_OPT_WHOLE_EVERY},                   \
    {                                                                                    \
        "max-shard", required_argument, NULL, CLI_OPT_MAX_SHARD                          \
    }

/* Their lines in a verb's help, except for --as. */
#define CLI_PEER_HELP                                                                    \
    "  --trl v1|v3          TRL: the layout (v3)\n"                                      \
    "  --codec CODEC        TRL: gap, or raw, which is all that v1 has; slime: xor, "    \
    "or\n"                                                                               \
    "                       overwrite\n"                                                 \
    "  --checksum NAME      slime: xxh3-128, or adler32\n"                               \
    "  --whole-every N      TRL, slime: the whole model if N divides the version; "      \
    "TRL:\n"                                                                             \
    "                       20, in v1 10; slime: never\n"                                \
    "  --max-shard SIZE     slime: of the tensors in a file, before they are\n"          \
    "                       compressed (1 GiB)\n"

typedef struct cli_peer_options {
    const char *as; /* as given, or NULL */
    const char *trl;
    const char *codec;
    const char *checksum;
    const char *whole_every;
    const char *max_shard;
} cli_peer_options;

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_peer_option(cli_peer_options *options, int option);

/* Whether any option except --as was given. */
bool cli_peer_options_given(const cli_peer_options *options);

/* Fills the options for FORMAT. A wrong one is a usage error. */
dw_peer_publish_options cli_peer_options_read(const cli_peer_options *options,
                                              const cli_session *s,
                                              dw_peer_format format);

#endif
