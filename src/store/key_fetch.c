#include "store/key_fetch.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "net/credentials.h"
#include "net/retry.h"
#include "store/sigv4.h"

const char *dw_key_host(char out[DW_HOST_TEXT], const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    const size_t n = strcspn(host, "/?#");
    size_t start = 0;
    for (size_t i = 0; i < n; i++)
        if (host[i] == '@')
            start = i + 1;
    snprintf(out, DW_HOST_TEXT, "%.*s%.*s", (int)(host - url), url, (int)(n - start),
             host + start);
    return out;
}

dw_status dw_key_refused(const dw_keys *keys, int http_status, const char *code,
                         const char *message, const char *where, dw_error *err)
{
    bool again = dw_retry_judge(http_status, code) != DW_RETRY_FINAL;
    return dw_fail(err, again ? DW_UNAVAILABLE : DW_DENIED, where,
                   "%s: no credentials, the answer is %d%s%s%s%s", keys->origin,
                   http_status, *code ? " " : "", code, *message ? ": " : "", message);
}

dw_status dw_key_ask(dw_http_call *call, const dw_keys *keys, dw_error *err)
{
    char where[DW_HOST_TEXT];
    dw_error fault = {0};
    dw_status status = dw_http_once(call, dw_key_host(where, call->url), &fault);
    if (status == DW_OK && call->status != 200)
        return dw_key_refused(keys, call->status, "", "", where, err);
    if (status != DW_OK)
        dw_fail(err, fault.code, where, "%s: %s", keys->origin, fault.text);
    return status;
}

void dw_key_call_release(dw_http_call *call)
{
    dw_secret_release(&call->text);
    dw_http_call_release(call);
}

void dw_key_add_field(dw_writer *body, const char *name, const char *value)
{
    if (!value)
        return;
    dw_write_format(body, "&%s=", name);
    dw_percent_encode(body, value, false);
}
