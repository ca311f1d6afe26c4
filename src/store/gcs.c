#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/google_chain.h"
#include "store/s3.h"

/* Google's libraries take STORAGE_EMULATOR_HOST also without a scheme. */
static bool write_endpoint(dw_writer *out, const char *option)
{
    const char *given = option ? option : dw_environment("STORAGE_EMULATOR_HOST");
    if (given && !strstr(given, "://"))
        dw_write_text(out, "http://");
    dw_write_text(out, given ? given : "https://storage.googleapis.com");
    dw_write_u8(out, 0);
    return !out->failed;
}

dw_status dw_gcs_store_open(dw_store **out, const char *url,
                            const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    char *bucket;
    const char *prefix;
    dw_key_ring *keys = NULL;
    dw_writer endpoint = {0};
    dw_status status = dw_s3_url_split(&bucket, &prefix, "gs://", url, err);
    if (status == DW_OK && !write_endpoint(&endpoint, options ? options->endpoint : NULL))
        status = dw_fail_memory(err, url);
    if (status == DW_OK && options && options->credentials)
        status = dw_key_ring_called(&keys, options, true, err);
    else if (status == DW_OK && !(options && options->anonymous))
        status = dw_google_chain_open(&keys, err);
    if (status == DW_OK) {
        const dw_s3_location location = {
            .endpoint = (char *)endpoint.bytes,
            .bucket = bucket,
            .prefix = prefix,
            .region = "",
            .path_style = true,
            .keys = keys,
            .is_google = true,
        };
        status = dw_s3_store_open_at(out, url, &location, options, err);
    }
    dw_writer_release(&endpoint);
    dw_free(bucket);
    return status;
}
