#include "net/endpoint.h"

#include <string.h>

#include <curl/curl.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mem.h"

/* A part of a URL, or NULL; copied into our own memory. */
static char *copy_part(CURLU *url, CURLUPart part)
{
    char *text = NULL;
    if (curl_url_get(url, part, &text, 0) != CURLUE_OK)
        return NULL;
    char *copy = dw_copy_string(text);
    curl_free(text);
    return copy;
}

static bool has_part(CURLU *url, CURLUPart part)
{
    char *text = NULL;
    bool has = curl_url_get(url, part, &text, 0) == CURLUE_OK;
    curl_free(text);
    return has;
}

static dw_status fill(dw_endpoint *out, CURLU *url, const char *text, const char *where,
                      dw_error *err)
{
    if (curl_url_set(url, CURLUPART_URL, text, 0) != CURLUE_OK ||
        has_part(url, CURLUPART_USER) || has_part(url, CURLUPART_QUERY))
        return dw_fail(err, DW_INVALID, where,
                       "the endpoint must be a URL such as https://HOST[:PORT][/PATH], "
                       "without credentials and query");
    out->scheme = copy_part(url, CURLUPART_SCHEME);
    out->path = copy_part(url, CURLUPART_PATH);
    char *host = copy_part(url, CURLUPART_HOST), *port = NULL;
    dw_writer with_port = {0};
    dw_status status = DW_OK;
    if (out->scheme && strcmp(out->scheme, "https") != 0 &&
        strcmp(out->scheme, "http") != 0) { /* file:// has no host */
        status = dw_fail(err, DW_INVALID, where,
                         "the endpoint must begin with https:// or http://");
    } else if (!out->scheme || !host || !out->path) {
        status = dw_fail_memory(err, where);
    } else {
        for (size_t n = strlen(out->path); n > 0 && out->path[n - 1] == '/'; n--)
            out->path[n - 1] = 0;
        /* The same text as libcurl's Host header, because it is signed. */
        dw_write_text(&with_port, host);
        if (curl_url_get(url, CURLUPART_PORT, &port, 0) == CURLUE_OK &&
            strcmp(port, strcmp(out->scheme, "https") == 0 ? "443" : "80") != 0)
            dw_write_format(&with_port, ":%s", port);
        dw_write_u8(&with_port, 0);
        curl_free(port);
        out->host = (char *)with_port.bytes;
        if (with_port.failed)
            status = dw_fail_memory(err, where);
    }
    dw_free(host);
    return status;
}

dw_status dw_endpoint_parse(dw_endpoint *out, const char *text, const char *where,
                            dw_error *err)
{
    *out = (dw_endpoint){0};
    CURLU *url = curl_url();
    if (!url)
        return dw_fail_memory(err, where);
    dw_status status = fill(out, url, text, where, err);
    curl_url_cleanup(url);
    return status;
}

void dw_endpoint_release(dw_endpoint *endpoint)
{
    dw_free(endpoint->scheme);
    dw_free(endpoint->host);
    dw_free(endpoint->path);
    *endpoint = (dw_endpoint){0};
}
