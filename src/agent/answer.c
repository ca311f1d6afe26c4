#include "agent/answer.h"

#include "base/mem.h"

dw_answer dw_answer_text(unsigned code, const char *text)
{
    dw_answer a = {.code = code, .type = "text/plain; charset=utf-8"};
    dw_write_text(&a.body, text);
    dw_write_text(&a.body, "\n");
    return a;
}

static struct MHD_Response *make_response(dw_answer *a)
{
    static char no_memory[] = "out of memory\n";
    if (a->body.failed) {
        dw_writer_release(&a->body);
        a->code = MHD_HTTP_INTERNAL_SERVER_ERROR;
        a->type = "text/plain";
        a->fixed = no_memory;
        a->n_fixed = sizeof no_memory - 1;
    }
    /* libmicrohttpd takes a pointer without const, but does not write */
    if (a->fixed)
        return MHD_create_response_from_buffer(a->n_fixed, (void *)a->fixed,
                                               MHD_RESPMEM_PERSISTENT);
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        a->body.n_bytes, a->body.bytes, dw_free);
    if (response)
        a->body = (dw_writer){0};
    return response;
}

enum MHD_Result dw_answer_send(struct MHD_Connection *connection, dw_answer *answer)
{
    struct MHD_Response *response = make_response(answer);
    dw_writer_release(&answer->body);
    if (!response)
        return MHD_NO;
    const struct {
        const char *name;
        const char *value;
    } headers[] = {
        {"Content-Type", answer->type},
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Content-Security-Policy",
         answer->policy ? answer->policy : "default-src 'none'; frame-ancestors 'none'"},
        {"Allow", answer->allow},
        {"Connection", answer->closes ? "close" : NULL},
        {"WWW-Authenticate",
         answer->code == MHD_HTTP_UNAUTHORIZED ? "Bearer realm=\"deltawire\"" : NULL},
    };
    enum MHD_Result sent = MHD_YES;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        if (headers[i].value && sent == MHD_YES)
            sent = MHD_add_response_header(response, headers[i].name, headers[i].value);
    if (sent == MHD_YES)
        sent = MHD_queue_response(connection, answer->code, response);
    MHD_destroy_response(response);
    return sent;
}
