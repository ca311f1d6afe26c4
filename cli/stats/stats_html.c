#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "stats.h"

/* stats.html, embedded by the build. */
extern const unsigned char stats_page[];

#define MARK "\"DELTAWIRE_REPORT\"" /* where the report goes */

/* Escapes `<`, so that no name can end the script. */
static void write_json(dw_writer *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            dw_write_text(out, "\\u003c");
        else
            dw_write_u8(out, (uint8_t)*text);
}

dw_status stats_save_html(const json_t *report, const char *path, dw_error *err)
{
    const char *page = (const char *)stats_page;
    const char *mark = strstr(page, MARK);
    dw_writer out = {0};
    char *json =
        json_dumps(report, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    if (json) {
        dw_write_bytes(&out, page, (size_t)(mark - page));
        write_json(&out, json);
        dw_write_text(&out, mark + strlen(MARK));
    }
    dw_status status = json && !out.failed
                           ? dw_write_file(path, out.bytes, out.n_bytes, err)
                           : dw_fail_memory(err, path);
    dw_writer_release(&out);
    free(json);
    return status;
}
