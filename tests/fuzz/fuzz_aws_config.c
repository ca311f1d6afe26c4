/* AWS's profile files with any text: an error or settings. The input is the config file,
 * a NUL, and the credentials file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/aws_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(bool condition)
{
    if (!condition)
        abort();
}

/* Makes a file without a name, and sets VARIABLE to its path. */
static int make_file(const char *variable)
{
    FILE *file = tmpfile();
    check(file != NULL);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    setenv(variable, path, 1);
    return fileno(file);
}

static void fill(int fd, const uint8_t *bytes, size_t n_bytes)
{
    check(ftruncate(fd, 0) == 0);
    check(pwrite(fd, bytes, n_bytes, 0) == (ssize_t)n_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static int config_fd = -1, credentials_fd;
    if (config_fd < 0) {
        config_fd = make_file("AWS_CONFIG_FILE");
        credentials_fd = make_file("AWS_SHARED_CREDENTIALS_FILE");
    }
    const uint8_t *end = n_bytes ? memchr(bytes, 0, n_bytes) : NULL;
    size_t n_config = end ? (size_t)(end - bytes) : n_bytes;
    fill(config_fd, bytes, n_config);
    fill(credentials_fd, bytes + n_config + !!end, n_bytes - n_config - !!end);

    dw_aws_files files;
    dw_aws_profile profile;
    dw_aws_config config = {0};
    dw_error err;
    dw_status status = dw_aws_files_read(&files, &err);
    if (status == DW_OK)
        status = dw_aws_profile_choose(&profile, &files, NULL, &err);
    if (status == DW_OK)
        status = dw_aws_config_load(&config, &profile, NULL, &err);
    check(status != DW_OK || (config.region && *config.region));
    if (status == DW_OK && profile.source_profile) /* as a role does */
        (void)dw_aws_profile_find(&files, profile.source_profile);
    dw_aws_config_release(&config);
    dw_aws_files_release(&files);
    return 0;
}
