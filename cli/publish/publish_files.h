/* The companion files that publish and repair take from a checkpoint. */
#ifndef CLI_PUBLISH_FILES_H
#define CLI_PUBLISH_FILES_H

#include <deltawire/files.h>
#include <deltawire/publish.h>

#include "command_line.h"

enum { CLI_OPT_WITH = 2304, CLI_OPT_WITHOUT };

#define CLI_WITH_OPTIONS                                                                 \
    {"with", required_argument, NULL, CLI_OPT_WITH},                                     \
    {                                                                                    \
        "without", required_argument, NULL, CLI_OPT_WITHOUT                              \
    }

#define CLI_WITH_HELP                                                                    \
    "  --with GLOB          also publish these files beside the weights, such as *.py\n" \
    "  --without GLOB       leave these out; '*': publish no files. Default, if CKPT "   \
    "is "                                                                                \
    "a\n"                                                                                \
    "                       directory: config.json, tokenizer files, chat templates "    \
    "...\n"

#define CLI_MAX_GLOBS 64

/* --with and --without, as often as they were given. */
typedef struct cli_with {
    const char *with[CLI_MAX_GLOBS];
    const char *without[CLI_MAX_GLOBS];
    size_t n_with, n_without;
} cli_with;

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_with_option(cli_with *with, const cli_session *s, int option);

/* The rules that the options make, for a directory. They borrow from WITH. */
dw_companion_rules cli_with_rules(const cli_with *with);

/* Reads the companion files of CHECKPOINT and names them in OPTIONS. *OUT owns them; it
 * is NULL if there are none. Of a directory they are those of the usual names, beside
 * what the options ask for; of a single file, only those. A directory without any leaves
 * those of the version before. */
dw_status cli_files_load(dw_companions **out, dw_publish_options *options,
                         const cli_with *with, const char *checkpoint, dw_error *err);

/* Warns of each --with that none of the files in OPTIONS matches. */
void cli_with_warn(const cli_with *with, const dw_publish_options *options,
                   const cli_session *s);

/* Whether VERSION of the stream has the files that OPTIONS names; true if it names none.
 */
dw_status cli_files_same(bool *same, const dw_publish_options *options, dw_stream *stream,
                         uint64_t version, dw_error *err);

#endif
