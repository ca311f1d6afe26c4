#include "net/http_easy.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "deltawire/base.h"

enum {
    MAX_HEAD_BYTES = 64 << 10,
    MIN_RECEIVE_BYTES = 16 << 10,
    MAX_RECEIVE_BYTES = 512 << 10, /* the most that every version of libcurl accepts */
    MAX_SEND_BYTES = 2 << 20,
    SMALL_BYTES = 4 << 20,
    CONNECT_MS = 10000,
};

const char *dw_http_ca_bundle(void)
{
    const char *path = getenv("AWS_CA_BUNDLE");
    return path && *path ? path : NULL;
}

void dw_http_easy_fail(dw_http_call *call, dw_http_result result, const char *problem)
{
    call->result = result;
    snprintf(call->problem, sizeof call->problem, "%s", problem);
}

/* ---- sockets ---- */

static curl_socket_t open_socket(void *context, curlsocktype purpose,
                                 struct curl_sockaddr *address)
{
    (void)purpose;
    dw_http_sockets *sockets = context;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd >= 0 && sockets->n < DW_HTTP_MAX_SOCKETS)
        sockets->fds[sockets->n++] = fd;
    return fd;
}

static int close_socket(void *context, curl_socket_t fd)
{
    dw_http_sockets *sockets = context;
    for (unsigned i = 0; i < sockets->n; i++)
        if (sockets->fds[i] == fd) {
            sockets->fds[i] = sockets->fds[--sockets->n];
            break;
        }
    return close(fd);
}

/* A server that sends the head and the body of a reply separately, with Nagle's
 * algorithm, holds back the end of the body until the head is acknowledged, which takes
 * Linux 40 ms. libcurl does not report the socket of a call before its end, so this is
 * done for all sockets of the thread. They are few, and it is only done if 40 ms matter.
 */
static void acknowledge_now(const dw_http_call *call)
{
#ifdef TCP_QUICKACK
    const dw_http_sockets *sockets = call->sockets;
    int on = 1;
    for (unsigned i = 0; call->n_into <= SMALL_BYTES && i < sockets->n; i++)
        setsockopt(sockets->fds[i], IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
#else
    (void)call;
#endif
}

/* ---- the reply ---- */

static size_t take_header(char *line, size_t size, size_t n_given, void *context)
{
    (void)size;
    dw_http_call *call = context;
    size_t n = n_given;
    while (n > 0 && strchr("\r\n \t", line[n - 1]))
        n--;
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        call->head.n_bytes = 0; /* the real reply comes after a 100 */
        call->head_ended = false;
        acknowledge_now(call);
        return n_given;
    }
    if (call->head.n_bytes + n + 1 > MAX_HEAD_BYTES) {
        dw_http_easy_fail(call, DW_HTTP_REFUSED, "the headers of the reply do not end");
        return 0;
    }
    call->head_ended = call->head_ended || n == 0;
    if (n == 0 || memchr(line, 0, n))
        return n_given;
    dw_write_bytes(&call->head, line, n);
    dw_write_u8(&call->head, 0);
    return n_given;
}

static size_t refuse(dw_http_call *call, const char *problem)
{
    dw_http_easy_fail(call, DW_HTTP_REFUSED, problem);
    return 0;
}

/* Checks the object and the range before the first byte of a body goes INTO. */
static bool begin_body(dw_http_call *call)
{
    long status = 0;
    curl_easy_getinfo((CURL *)call->easy, CURLINFO_RESPONSE_CODE, &status);
    call->status = (int)status;
    call->body_begun = true;
    if (!call->into || status / 100 != 2)
        return true;
    if (status == 206) {
        const char *text = dw_http_header(call, "content-range");
        uint64_t first, last, total;
        if (!text || !dw_http_parse_content_range(text, &first, &last, &total) ||
            first != call->offset || last - first >= call->n_into)
            return refuse(call, "the server sent another range than asked for") > 0;
        call->object_bytes = total;
    }
    return true;
}

static size_t take_text(dw_http_call *call, const char *bytes, size_t n)
{
    if (n > call->max_text || call->text.n_bytes > call->max_text - n)
        return refuse(call, "the reply is too long");
    dw_write_bytes(&call->text, bytes, n);
    return call->text.failed ? refuse(call, "out of memory") : n;
}

static size_t take_body(char *bytes, size_t size, size_t n, void *context)
{
    (void)size;
    dw_http_call *call = context;
    if (!call->body_begun && !begin_body(call))
        return 0;
    if (!call->into || call->status / 100 != 2)
        return take_text(call, bytes, n);
    size_t n_given = n;
    if (call->status != 206 && call->n_skipped < call->offset) {
        /* the server sent the whole object although a part was asked for */
        uint64_t n_skip = call->offset - call->n_skipped;
        if (n_skip > n)
            n_skip = n;
        call->n_skipped += (size_t)n_skip;
        bytes += n_skip;
        n -= (size_t)n_skip;
    }
    size_t n_room = call->n_into - call->n_received;
    size_t n_copy = n < n_room ? n : n_room;
    memcpy((char *)call->into + call->n_received, bytes, n_copy);
    call->n_received += n_copy;
    atomic_fetch_add_explicit(&call->n_moved, n_copy, memory_order_relaxed);
    if (n_copy == n)
        return n_given;
    if (call->status == 206)
        return refuse(call, "the server sent more than it was asked for");
    call->enough = true; /* ends the transfer: nobody needs the rest */
    return 0;
}

/* ---- the request ---- */

static size_t give_body(char *into, size_t size, size_t n_room, void *context)
{
    dw_http_call *call = context;
    size_t n = call->n_send - call->n_sent;
    if (n > size * n_room)
        n = size * n_room;
    memcpy(into, (const char *)call->send + call->n_sent, n);
    call->n_sent += n;
    atomic_store_explicit(&call->n_moved, call->n_sent, memory_order_relaxed);
    return n;
}

/* libcurl sends the request again if a kept connection turns out to be dead. */
static int rewind_body(void *context, curl_off_t offset, int origin)
{
    dw_http_call *call = context;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > call->n_send)
        return CURL_SEEKFUNC_FAIL;
    call->n_sent = (size_t)offset;
    call->sent_twice = true;
    return CURL_SEEKFUNC_OK;
}

static long clamp(size_t n, size_t least, size_t most)
{
    return (long)(n < least ? least : n > most ? most : n);
}

static struct curl_slist *add_line(struct curl_slist *list, const char *line, bool *good)
{
    struct curl_slist *longer = *good ? curl_slist_append(list, line) : NULL;
    if (!longer)
        *good = false;
    return longer ? longer : list;
}

static void set_method(dw_http_call *call, CURL *easy)
{
    if (strcmp(call->method, "HEAD") == 0) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    } else if (strcmp(call->method, "PUT") == 0 || strcmp(call->method, "POST") == 0) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)call->n_send);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
        curl_easy_setopt(easy, CURLOPT_READDATA, call);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_body);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, call);
        curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE,
                         clamp(call->n_send, 64 << 10, MAX_SEND_BYTES));
    } else if (strcmp(call->method, "GET") != 0) {
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
    }
}

static void set_protocols(CURL *easy)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

bool dw_http_easy_attach(dw_http_call *call, CURL *easy, dw_http_sockets *sockets,
                         const char *ca_bundle)
{
    curl_easy_reset(easy);
    call->easy = easy;
    call->sockets = sockets;
    bool good = true;
    /* Does not wait for 100-continue: refusals are rare, and the wait would cost a round
     * trip. */
    struct curl_slist *list = add_line(NULL, "Expect:", &good);
    for (size_t i = 0; i < call->n_headers; i++)
        list = add_line(list, call->headers[i], &good);
    call->header_list = list;
    good = good && curl_easy_setopt(easy, CURLOPT_URL, call->url) == CURLE_OK;
    good = good &&
           (!ca_bundle || curl_easy_setopt(easy, CURLOPT_CAINFO, ca_bundle) == CURLE_OK);
    good =
        good && (!call->direct || curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK);
    if (!good)
        return false;
    set_method(call, easy);
    set_protocols(easy);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "deltawire/" DW_VERSION_STRING);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS,
                     1L); /* send the path exactly as it was signed */
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* a thread that resolves a name cannot be ended: do not wait for it */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)call->stall_s);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE,
                     clamp(call->n_into, MIN_RECEIVE_BYTES, MAX_RECEIVE_BYTES));
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, sockets);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, sockets);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->curl_text);
    return true;
}

/* ---- the end ---- */

/* Whether another try cannot help. Once the request was sent, the reply is the fault:
 * libcurl reports one that is not HTTP as an unsupported protocol, and a long header as a
 * lack of memory. */
static bool hopeless(CURL *easy, CURLcode code)
{
    long n_sent = 0;
    curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &n_sent);
    if (n_sent > 0)
        return false;
    switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_NOT_BUILT_IN:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_OUT_OF_MEMORY:
        return true;
    default:
        return false;
    }
}

static void check_length(dw_http_call *call)
{
    if (!call->into || call->status / 100 != 2)
        return;
    CURL *easy = call->easy;
    if (!call->body_begun && !begin_body(call))
        return;
    curl_off_t length = -1;
    curl_easy_getinfo(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (call->status != 206) {
        call->object_bytes =
            length >= 0 ? (uint64_t)length : call->n_skipped + (uint64_t)call->n_received;
        if (call->enough && length < 0)
            call->object_bytes = UINT64_MAX; /* chunked: at least as large as the range */
    }
    uint64_t n_left =
        call->object_bytes > call->offset ? call->object_bytes - call->offset : 0;
    if (call->n_received != (n_left < call->n_into ? n_left : call->n_into))
        dw_http_easy_fail(call, DW_HTTP_BROKEN, "the reply ended before its end");
}

void dw_http_easy_finish(dw_http_call *call, CURLcode code)
{
    CURL *easy = call->easy;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    call->status = (int)status;
    if (call->result != DW_HTTP_ANSWERED) /* a callback has set the problem */
        return;
    if (code != CURLE_OK && !call->enough) {
        dw_http_easy_fail(call, hopeless(easy, code) ? DW_HTTP_HOPELESS : DW_HTTP_BROKEN,
                          *call->curl_text ? call->curl_text : curl_easy_strerror(code));
        return;
    }
    if (!call->head_ended) { /* libcurl reports no error for this */
        dw_http_easy_fail(call, DW_HTTP_BROKEN, "the reply ended within its headers");
        return;
    }
    if (call->head.failed) {
        dw_http_easy_fail(call, DW_HTTP_HOPELESS, "out of memory");
        return;
    }
    check_length(call);
    char *redirect = NULL;
    curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &redirect);
    if (redirect)
        call->redirect_url = dw_copy_string(redirect);
}

void dw_http_easy_detach(dw_http_call *call)
{
    if (call->easy)
        curl_easy_reset(
            (CURL *)call->easy); /* drops the pointer to the list of headers */
    curl_slist_free_all(call->header_list);
    call->header_list = NULL;
    call->easy = NULL;
}

/* ---- calls ---- */

void dw_http_call_reset(dw_http_call *call)
{
    call->result = DW_HTTP_ANSWERED;
    call->status = 0;
    call->n_received = 0;
    call->object_bytes = 0;
    call->text.n_bytes = call->head.n_bytes = 0;
    call->text.failed = call->head.failed = false;
    dw_free(call->redirect_url);
    call->redirect_url = NULL;
    call->problem[0] = call->curl_text[0] = 0;
    atomic_store(&call->n_moved, 0);
    call->n_skipped = call->n_sent = 0;
    call->head_ended = call->body_begun = call->enough = call->cancel = false;
    call->sent_twice = false;
}

void dw_http_call_release(dw_http_call *call)
{
    dw_writer_release(&call->text);
    dw_writer_release(&call->head);
    dw_free(call->redirect_url);
    call->redirect_url = NULL;
}

const char *dw_http_header(const dw_http_call *call, const char *name)
{
    size_t n_name = strlen(name);
    const char *at = (const char *)call->head.bytes;
    const char *end = at ? at + call->head.n_bytes : at;
    for (; at < end; at += strlen(at) + 1)
        if (strncasecmp(at, name, n_name) == 0 && at[n_name] == ':') {
            const char *value = at + n_name + 1;
            return value + strspn(value, " \t");
        }
    return NULL;
}

bool dw_http_clock_offset(const dw_http_call *call, int64_t *offset_ms)
{
    const char *text = dw_http_header(call, "date");
    const time_t when = text ? curl_getdate(text, NULL) : -1;
    if (when <= 0)
        return false;
    *offset_ms = (int64_t)when * 1000 + 500 - dw_wall_clock_ms(); /* of a whole second */
    return true;
}

static bool parse_number(const char **at, uint64_t *out)
{
    if (**at < '0' || **at > '9')
        return false;
    char *end;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0;
}

bool dw_http_parse_content_range(const char *text, uint64_t *first, uint64_t *last,
                                 uint64_t *total)
{
    if (strncasecmp(text, "bytes ", 6) != 0)
        return false;
    const char *at = text + 6;
    if (!parse_number(&at, first) || *at++ != '-' || !parse_number(&at, last) ||
        *at++ != '/' || !parse_number(&at, total) || *at != 0)
        return false;
    return *first <= *last && *last < *total;
}
