#include "follow_options.h"

const cli_option cli_follow_options[] = {
    {CLI_OPTION(TEXT, dw_follow_options, base, "base", "CKPT",
                "the checkpoint behind a version 0 that was not uploaded")},
    {CLI_OPTION(MS, dw_follow_options, reader_wait_ms, "reader-wait", "S",
                "wait at most S seconds for readers of the weights (10)")},
    {CLI_OPTION(FLAG, dw_follow_options, no_files, "no-files", NULL,
                "do not install config.json, tokenizer files and such")},
    {0},
};
