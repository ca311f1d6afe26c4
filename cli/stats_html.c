#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "new_file.h"
#include "stats.h"

/* stats.html, as the build embeds it. */
extern const unsigned char stats_page[];

#define MARK "\"DELTAWIRE_REPORT\"" /* where the report goes */

/* A name may hold anything: no `<` means no end of the script. */
static bool write_json(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<' ? fputs("\\u003c", out) == EOF : putc(*text, out) == EOF)
            return false;
    return true;
}

static bool write_page(FILE *out, const char *json)
{
    const char *page = (const char *)stats_page;
    const char *mark = strstr(page, MARK);
    const size_t n_before = (size_t)(mark - page);
    return fwrite(page, 1, n_before, out) == n_before && write_json(out, json) &&
           fputs(mark + strlen(MARK), out) != EOF;
}

dw_status stats_save_html(const json_t *report, const char *path, dw_error *err)
{
    cli_new_file file;
    char *json =
        json_dumps(report, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    if (!json)
        return cli_error_set(err, DW_NO_MEMORY, path, "out of memory");
    dw_status status = cli_new_file_open(&file, path, err);
    if (status == DW_OK)
        status = cli_new_file_close(&file, write_page(file.file, json), err);
    free(json);
    return status;
}
