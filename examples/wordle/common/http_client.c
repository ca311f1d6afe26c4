#include "http_client.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define MAX_ANSWER_BYTES (8u << 20)

struct http_client {
    CURL *curl;
    struct curl_slist *headers;
    const atomic_bool *stop;
    char *bytes; /* of the answer */
    size_t n_bytes, room;
    char trouble[CURL_ERROR_SIZE];
};

static bool stopped(const http_client *client)
{
    return client->stop && atomic_load(client->stop);
}

static size_t take_bytes(char *bytes, size_t size, size_t n, void *context)
{
    http_client *client = context;
    n *= size;
    if (n > MAX_ANSWER_BYTES - client->n_bytes)
        return 0;
    if (client->n_bytes + n > client->room) {
        size_t room = 2 * (client->n_bytes + n);
        char *grown = realloc(client->bytes, room);
        if (!grown)
            return 0;
        client->bytes = grown;
        client->room = room;
    }
    memcpy(client->bytes + client->n_bytes, bytes, n);
    client->n_bytes += n;
    return n;
}

static int look_up(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return stopped(context);
}

dw_status http_client_new(http_client **out, const atomic_bool *stop, dw_error *err)
{
    http_client *client = calloc(1, sizeof *client);
    if (client) {
        client->stop = stop;
        client->curl = curl_easy_init();
        client->headers = curl_slist_append(NULL, "Content-Type: application/json");
    }
    if (!client || !client->curl || !client->headers) {
        http_client_free(client);
        return wordle_fail(err, DW_NO_MEMORY, "HTTP", "out of memory");
    }
    *out = client;
    return DW_OK;
}

void http_client_free(http_client *client)
{
    if (!client)
        return;
    curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client->bytes);
    free(client);
}

static void prepare(http_client *client, const char *url, const char *body,
                    unsigned timeout_ms)
{
    CURL *curl = client->curl;
    curl_easy_reset(curl); /* connections stay */
    client->n_bytes = 0;
    client->trouble[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, url);
    if (body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    }
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 2000L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, client);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, client->trouble);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look_up);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, client);
}

static dw_status judge(const http_client *client, const char *url, json_t **answer,
                       dw_error *err)
{
    long code = 0;
    const char *why = NULL;
    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &code);
    json_t *object = json_loadb(client->bytes ? client->bytes : "", client->n_bytes,
                                JSON_REJECT_DUPLICATES, NULL);
    dw_status status = DW_OK;
    json_unpack(object, "{s:{s:s}}", "error", "message", &why);
    if (code < 200 || code > 299)
        status = wordle_fail(err, DW_CONFLICT, url, "was refused with %ld: %.200s", code,
                             why ? why : "no reason given");
    else if (!json_is_object(object))
        status = wordle_fail(err, DW_INVALID, url,
                             "does not answer with a JSON object: is it the right port?");
    if (status == DW_OK)
        *answer = json_incref(object);
    json_decref(object);
    return status;
}

dw_status http_client_ask(http_client *client, const char *url, const json_t *body,
                          unsigned timeout_ms, json_t **answer, dw_error *err)
{
    *answer = NULL;
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (body && !text)
        return wordle_fail(err, DW_NO_MEMORY, url, "out of memory");
    prepare(client, url, text, timeout_ms);
    CURLcode code = curl_easy_perform(client->curl);
    free(text);
    if (stopped(client))
        return wordle_fail(err, DW_CANCELLED, url, "was given up");
    if (code != CURLE_OK)
        return wordle_fail(err, DW_UNAVAILABLE, url, "does not answer: %s",
                           client->trouble[0] ? client->trouble
                                              : curl_easy_strerror(code));
    return judge(client, url, answer, err);
}
