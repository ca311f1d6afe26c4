/* Each reader of a server's XML on any bytes: it refuses them, or its result is within
 * its bounds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    dw_error err;
    dw_s3_error answer;
    bool is_error = dw_s3_error_parse(&answer, bytes, n_bytes);
    check(!is_error || dw_s3_complete_parse(NULL, bytes, n_bytes, "fuzz", &err) != DW_OK);
    check(memchr(answer.code, 0, sizeof answer.code) &&
          memchr(answer.message, 0, sizeof answer.message));

    dw_s3_list_page page;
    if (dw_s3_list_parse(&page, bytes, n_bytes, "fuzz", &err) == DW_OK) {
        check(page.n_entries <= DW_S3_PAGE_ENTRIES);
        check(!page.truncated || page.next_token);
        for (size_t i = 0; i < page.n_entries; i++)
            check(strlen(page.entries[i].key) <= DW_S3_KEY_BYTES);
    }
    dw_s3_list_page_release(&page);

    char *id;
    if (dw_s3_upload_id_parse(&id, bytes, n_bytes, "fuzz", &err) == DW_OK)
        check(strlen(id) > 0 && strlen(id) <= DW_S3_KEY_BYTES);
    dw_free(id);
    return 0;
}
