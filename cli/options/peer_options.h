/* Options of mirror for what it writes: --as and the options that go with it. */
#ifndef CLI_PEER_OPTIONS_H
#define CLI_PEER_OPTIONS_H

#include "formats/formats.h"

#include "command_line.h"

typedef struct cli_peer_options {
    const char *as; /* as given, or NULL */
    const char *trl;
    const char *codec;
    unsigned whole_every;
} cli_peer_options;

extern const cli_option cli_peer_rows[]; /* of a cli_peer_options, but for --as */

/* Fills the options for FORMAT. A wrong one is a usage error. */
dw_foreign_options cli_peer_options_read(const cli_peer_options *options,
                                         const cli_session *s, const dw_format *format);

#endif
