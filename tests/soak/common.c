#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "role.h"

dw_status soak_store_open(dw_store **out, const char *url, dw_error *err)
{
    const dw_store_options options = {.struct_bytes = sizeof options,
                                      .endpoint = getenv("DW_TEST_S3_ENDPOINT"),
                                      .n_connections = 4,
                                      .deadline_ms = 300000};
    return dw_store_open(out, url, &options, err);
}

void soak_say(const char *what, dw_status status, const dw_error *err)
{
    char line[DW_ERROR_WHERE_SIZE + DW_ERROR_TEXT_SIZE + 256];
    int n = snprintf(line, sizeof line, "[%d] %s: %s: %s: %s\n", (int)getpid(), what,
                     dw_status_name(status), err->where, err->text);
    if (n > 0)
        fwrite(line, 1, (size_t)n,
               stderr); /* one write, because others write there too */
}
