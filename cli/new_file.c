#include "new_file.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "error.h"
#include "path.h"

dw_status cli_new_file_open(cli_new_file *out, const char *path, dw_error *err)
{
    *out = (cli_new_file){.path = path};
    for (unsigned n = 0;; n++) {
        out->name = cli_path_temporary(path, n);
        out->file = out->name ? fopen(out->name, "wx") : NULL;
        if (out->file)
            return DW_OK;
        int refused = errno;
        free(out->name);
        out->name = NULL;
        errno = refused;
        if (refused != EEXIST)
            return cli_error_errno(err, path, "create");
    }
}

dw_status cli_new_file_close(cli_new_file *file, bool written, dw_error *err)
{
    dw_status status = DW_OK;
    written &= fclose(file->file) == 0;
    if (!written || rename(file->name, file->path) != 0) {
        status = cli_error_errno(err, file->path, "write");
        unlink(file->name);
    }
    free(file->name);
    return status;
}
