#include "snapshot_options.h"

bool cli_snapshot_option(dw_follow_options *options, const cli_session *s, int option)
{
    if (option == CLI_OPT_NO_FILES) {
        options->no_files = true;
    } else if (option == CLI_OPT_READER_WAIT) {
        const double seconds = cli_parse_positive(s, "--reader-wait", optarg);
        if (seconds > 86400)
            cli_usage_error(s, "--reader-wait: at most 86400, a day");
        options->reader_wait_ms = (unsigned)(1000 * seconds) + 1;
    } else {
        return false;
    }
    return true;
}
