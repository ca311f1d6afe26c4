/* The companion files that publish and repair take from a checkpoint. */
#ifndef CLI_PUBLISH_FILES_H
#define CLI_PUBLISH_FILES_H

#include <deltawire/stream.h>
#include <deltawire/publish.h>

#include "command_line.h"

/* --with and --without, as often as they were given. */
typedef struct cli_with {
    cli_list with;
    cli_list without;
} cli_with;

extern const cli_option cli_with_options[]; /* of a cli_with */

/* What publish and repair may write, of a dw_publish_options. */
extern const cli_option cli_writer_options[];

/* Lets open print who wrote URL before, and if it waits. URL is borrowed. */
void cli_writer_notices(dw_publish_options *options, const cli_session *s,
                        const char *url);

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
