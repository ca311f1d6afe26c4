#include "net/http_once.h"

#include "base/error.h"

#define MAX_TEXT_BYTES (256u << 10)
#define WAIT_MS        1000

dw_status dw_http_once(dw_http_call *call, const char *where, dw_error *err)
{
    dw_http *http = NULL;
    dw_http_inbox inbox;
    dw_status status = dw_http_open(&http, 1, err);
    if (status == DW_OK)
        status = dw_http_inbox_init(&inbox, err);
    if (status != DW_OK) {
        dw_http_close(http);
        return status;
    }
    call->max_text = MAX_TEXT_BYTES;
    call->stall_s = call->timeout_ms / 1000 + 1;
    dw_http_call_reset(call);
    dw_http_submit(http, call, &inbox);
    while (!dw_http_wait(&inbox, WAIT_MS))
        ; /* the call's own limit ends it */
    if (call->result != DW_HTTP_ANSWERED)
        status = dw_fail(err, DW_UNAVAILABLE, where, "%s", call->problem);
    dw_http_inbox_release(&inbox);
    dw_http_close(http);
    return status;
}
