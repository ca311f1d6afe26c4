#include "engine/engine_http.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "deltawire/stream.h"
#include "net/credentials.h"

enum { MAX_REPLY_BYTES = 1 << 20, MAX_URL = 1024 };

#define NO_LABEL "none"

/* ---- opening ---- */

static dw_status check_url(CURLU *parts, const char *url, dw_error *err)
{
    static const CURLUPart unwanted[] = {CURLUPART_USER, CURLUPART_PASSWORD,
                                         CURLUPART_QUERY, CURLUPART_FRAGMENT};
    if (strlen(url) > MAX_URL)
        return dw_fail(err, DW_INVALID, NULL,
                       "the engine's URL has more than %d bytes: give a shorter one",
                       MAX_URL);
    bool good = (strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0) &&
                curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK;
    for (size_t i = 0; good && i < sizeof unwanted / sizeof *unwanted; i++) {
        char *text = NULL;
        if (curl_url_get(parts, unwanted[i], &text, 0) == CURLUE_OK)
            good = false;
        curl_free(text);
    }
    if (good)
        return DW_OK;
    /* the URL may hold a password, so the message does not repeat it */
    return dw_fail(err, DW_INVALID, NULL,
                   "the engine's URL must be http://HOST[:PORT][/PATH] or https://..., "
                   "with no user, query or fragment; a token is an option of its own");
}

dw_status dw_engine_http_init(dw_engine_http *http, const char *url,
                              const dw_engine_options *options, dw_error *err)
{
    const char *token = options->token;
    *http = (dw_engine_http){.pause_ms = options->pause_ms,
                             .apply_ms = options->apply_ms,
                             .probe_ms = options->probe_ms};
    dw_status status = dw_http_init(err);
    if (status != DW_OK)
        return status;
    CURLU *parts = curl_url();
    if (!parts)
        return dw_fail_memory(err, NULL);
    status = check_url(parts, url, err);
    curl_url_cleanup(parts);
    if (status != DW_OK)
        return status;
    if (token && (!*token || !dw_is_header_word(token)))
        return dw_fail(err, DW_INVALID, url,
                       "the engine's token is empty or has bytes that no header can "
                       "carry");
    http->url = dw_copy_string(url);
    http->easy = curl_easy_init();
    if (token) {
        dw_writer line = {0};
        dw_write_format(&line, "Authorization: Bearer %s", token);
        dw_write_u8(&line, 0);
        http->authorization = (char *)line.bytes;
        http->token = dw_copy_string(token);
        if (line.failed || !http->token)
            return dw_fail_memory(err, url);
    }
    if (!http->url || !http->easy)
        return dw_fail_memory(err, url);
    for (size_t n = strlen(http->url); n > 0 && http->url[n - 1] == '/'; n--)
        http->url[n - 1] = '\0';
    return DW_OK;
}

void dw_engine_http_release(dw_engine_http *http)
{
    if (http->easy)
        curl_easy_cleanup(http->easy);
    dw_free(http->url);
    dw_secret_free(http->token);
    dw_secret_free(http->authorization);
    *http = (dw_engine_http){0};
}

/* ---- reading an answer ---- */

const char *dw_engine_text(const dw_json *object, const char *name)
{
    return dw_json_string(dw_json_get(object, name));
}

/* Engines report a failure as {"error":{"message":...}}, {"error":...}, {"detail":...}
 * or {"message":...}. */
static const char *find_words(const dw_json *body)
{
    static const char *const names[] = {"error", "detail", "message"};
    const char *words = dw_engine_text(dw_json_get(body, "error"), "message");
    for (size_t i = 0; !words && i < sizeof names / sizeof *names; i++)
        words = dw_engine_text(body, names[i]);
    return words;
}

/* Copies WORDS if it can be shown: it must be UTF-8 and must not hold the token. */
static void take_words(const dw_engine_http *http, dw_engine_answer *answer,
                       const char *words)
{
    if (!dw_utf8_valid(words) || (http->token && strstr(words, http->token)))
        return;
    size_t n = strlen(words);
    while (n > 0 && strchr(" \t\r\n", words[n - 1]))
        n--;
    if (n >= sizeof answer->words) {
        n = sizeof answer->words - 1;
        while (n > 0 && ((unsigned char)words[n] & 0xc0) == 0x80)
            n--; /* not in the middle of a character */
    }
    memcpy(answer->words, words, n);
    answer->words[n] = '\0';
}

/* TEXT ends with a NUL. */
static void read_failure(const dw_engine_http *http, dw_engine_answer *answer,
                         const dw_writer *text)
{
    dw_json *body = NULL;
    size_t n_bytes = text->n_bytes - 1;
    const char *words = NULL;
    if (dw_json_read(&body, text->bytes, n_bytes, "answer", NULL, NULL) == DW_OK)
        words = find_words(body);
    if (!words && !memchr(text->bytes, 0, n_bytes))
        words = (const char *)text->bytes;
    if (words)
        take_words(http, answer, words);
    dw_json_free(body);
}

/* ---- judging ---- */

static const char *where_of(const dw_engine_http *http,
                            const dw_engine_question *question,
                            char out[DW_ERROR_WHERE_SIZE])
{
    snprintf(out, DW_ERROR_WHERE_SIZE, "%s%s", http->url, question->path);
    return out;
}

dw_status dw_engine_nonsense(const dw_engine_http *http,
                             const dw_engine_question *question, const char *problem,
                             dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    return dw_fail(err, DW_INVALID, where_of(http, question, where),
                   "the answer makes no sense: %s; is another program listening there?",
                   problem);
}

static dw_status judge_silence(dw_engine_http *http, const dw_engine_question *question,
                               const dw_http_call *call, CURLcode code, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    where_of(http, question, where);
    long number = 0;
    curl_easy_getinfo(http->easy, CURLINFO_OS_ERRNO, &number);
    if (call->text.failed || call->head.failed || code == CURLE_OUT_OF_MEMORY)
        return dw_fail_memory(err, where);
    if (code == CURLE_COULDNT_CONNECT && number == ECONNREFUSED) {
        http->gone = true;
        return dw_fail(err, DW_UNAVAILABLE, where,
                       "nobody listens there: the engine is not running or still "
                       "starting");
    }
    if (code == CURLE_OPERATION_TIMEDOUT)
        return dw_fail(err, DW_UNAVAILABLE, where, "no answer within %u ms",
                       question->limit_ms);
    if (call->result == DW_HTTP_REFUSED || code == CURLE_UNSUPPORTED_PROTOCOL ||
        code == CURLE_WEIRD_SERVER_REPLY)
        return dw_engine_nonsense(http, question, call->problem, err);
    return dw_fail(err, DW_UNAVAILABLE, where, "no complete answer: %s", call->problem);
}

static dw_status judge_failure(const dw_engine_http *http,
                               const dw_engine_question *question,
                               const dw_engine_answer *answer, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    where_of(http, question, where);
    int status = answer->status;
    const char *colon = *answer->words ? ": " : "";
    if (status == 401 || status == 403)
        return dw_fail(err, DW_DENIED, where,
                       "the engine answered %d%s%s; it wants %s token", status, colon,
                       answer->words, http->token ? "another" : "a");
    if (status == 404 || status == 405 || status == 501)
        return dw_fail(err, DW_UNSUPPORTED, where, "the engine answered %d%s%s; %s",
                       status, colon, answer->words, question->missing);
    if (status / 100 == 3)
        return dw_fail(err, DW_INVALID, where,
                       "the engine answered %d, which leads elsewhere: give the URL it "
                       "leads to",
                       status);
    return dw_fail(err, DW_CONFLICT, where, "the engine answered %d%s%s", status, colon,
                   answer->words);
}

static dw_status judge(dw_engine_http *http, const dw_engine_question *question,
                       dw_http_call *call, CURLcode code, dw_engine_answer *answer,
                       dw_error *err)
{
    if (call->result != DW_HTTP_ANSWERED)
        return judge_silence(http, question, call, code, err);
    dw_write_u8(&call->text, 0);
    if (call->text.failed)
        return dw_fail_memory(err, http->url);
    answer->status = call->status;
    if (call->status / 100 != 2) {
        read_failure(http, answer, &call->text);
        return judge_failure(http, question, answer, err);
    }
    dw_error fault;
    dw_status status = dw_json_read(&answer->body, call->text.bytes,
                                    call->text.n_bytes - 1, "body", NULL, &fault);
    if (status == DW_NO_MEMORY)
        return dw_fail_memory(err, http->url);
    if (status != DW_OK)
        return dw_engine_nonsense(http, question, fault.text, err);
    const char *words = find_words(answer->body);
    if (words)
        take_words(http, answer, words);
    return DW_OK;
}

/* ---- requests ---- */

dw_status dw_engine_ask(dw_engine_http *http, const dw_engine_question *question,
                        dw_engine_answer *answer, dw_error *err)
{
    *answer = (dw_engine_answer){0};
    http->gone = false;
    dw_writer url = {0};
    dw_write_format(&url, "%s%s", http->url, question->path);
    dw_write_u8(&url, 0);
    if (url.failed) {
        dw_writer_release(&url);
        return dw_fail_memory(err, http->url);
    }
    const char *lines[2];
    dw_http_call call = {
        .method = question->method,
        .url = (const char *)url.bytes,
        .headers = lines,
        .send = question->json ? question->json : "",
        .n_send = question->json ? strlen(question->json) : 0,
        .timeout_ms = question->limit_ms,
        .max_text = MAX_REPLY_BYTES,
    };
    if (question->json)
        lines[call.n_headers++] = "Content-Type: application/json";
    if (http->authorization)
        lines[call.n_headers++] = http->authorization;
    dw_http_call_reset(&call);
    dw_status status;
    if (dw_http_easy_attach(&call, http->easy, &http->sockets, NULL)) {
        curl_easy_setopt(http->easy, CURLOPT_PROXY, "");
        CURLcode code = curl_easy_perform(http->easy);
        dw_http_easy_finish(&call, code);
        status = judge(http, question, &call, code, answer, err);
    } else {
        status = dw_fail_memory(err, http->url);
    }
    dw_http_easy_detach(&call);
    dw_http_call_release(&call);
    dw_writer_release(&url);
    return status;
}

dw_status dw_engine_order(dw_engine_http *http, const dw_engine_question *question,
                          const char *done, dw_error *err)
{
    dw_engine_answer answer;
    dw_status status = dw_engine_ask(http, question, &answer, err);
    if (status != DW_OK)
        return status;
    const char *word = dw_engine_text(answer.body, "status");
    if (!word || strcmp(word, done) != 0)
        status =
            dw_engine_nonsense(http, question, "it does not confirm the request", err);
    dw_json_free(answer.body);
    return status;
}

/* ---- names ---- */

void dw_engine_label_write(char out[DW_LABEL_SIZE], const dw_engine_update *update)
{
    snprintf(out, DW_LABEL_SIZE, "%.32s:%" PRIu64, update->stream ? update->stream : "",
             update->version);
}

static uint64_t read_number(const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || n > 19 || strspn(text, "0123456789") != n || (n > 1 && text[0] == '0'))
        return DW_NO_VERSION;
    uint64_t version = 0;
    for (; *text; text++)
        version = version * 10 + (uint64_t)(*text - '0');
    return version;
}

/* The version of the label's stream that TEXT names. */
static uint64_t version_in(const dw_engine_label *label, const char *text)
{
    const size_t n = strlen(label->stream);
    return n > 0 && strncmp(text, label->stream, n) == 0 && text[n] == ':'
               ? read_number(text + n + 1)
               : DW_NO_VERSION;
}

void dw_engine_label_found(dw_engine_label *label, const char *text)
{
    label->unsure = false;
    label->version = version_in(label, text);
    if (label->owed && strcmp(text, NO_LABEL) == 0)
        return; /* TEXT is what it had before */
    label->owed = false;
    snprintf(label->text, sizeof label->text, "%s", text);
}

void dw_engine_label_updated(dw_engine_label *label, const dw_engine_update *update,
                             dw_status status, bool whole)
{
    if (status == DW_OK) {
        *label = (dw_engine_label){.version = update->version};
        snprintf(label->stream, sizeof label->stream, "%s",
                 update->stream ? update->stream : "");
        dw_engine_label_write(label->text, update);
    } else if (whole) {
        label->unsure = true;
    } else {
        *label = DW_LABEL_UNKNOWN;
    }
}

/* DW_UNSUPPORTED from an older engine. */
static dw_status set_label(dw_engine_http *http, const char *text, dw_error *err)
{
    dw_writer json = {0};
    dw_write_text(&json, "{\"new_version\":");
    dw_write_json_string(&json, text);
    dw_write_text(&json, ",\"abort_all_requests\":false}");
    dw_write_u8(&json, 0);
    const dw_engine_question question = {"POST", "/update_weight_version",
                                         (const char *)json.bytes, http->probe_ms, ""};
    dw_engine_answer answer = {0};
    dw_status status = json.failed ? dw_fail_memory(err, http->url)
                                   : dw_engine_ask(http, &question, &answer, err);
    dw_json_free(answer.body);
    dw_writer_release(&json);
    return status;
}

static bool is_named(const dw_engine_label *label)
{
    return label->text[0] && strcmp(label->text, NO_LABEL) != 0;
}

dw_status dw_engine_drop_label(dw_engine_http *http, dw_engine_label *label,
                               dw_error *err)
{
    if (!label->unsure && label->text[0] && (label->owed || !is_named(label)))
        return DW_OK;
    dw_status status = set_label(http, NO_LABEL, err);
    if (status == DW_UNSUPPORTED) {
        label->owed = false;
        return DW_OK;
    }
    label->owed = is_named(label); /* also if no answer came: it may have been done */
    label->version = DW_NO_VERSION;
    label->unsure = status != DW_OK;
    return status;
}

dw_status dw_engine_restore_label(dw_engine_http *http, dw_engine_label *label,
                                  dw_error *err)
{
    if (!label->owed)
        return DW_OK;
    dw_status status = set_label(http, label->text, err);
    if (status != DW_OK && status != DW_UNSUPPORTED)
        return status;
    label->owed = label->unsure = false;
    label->version = version_in(label, label->text);
    return DW_OK;
}

dw_status dw_engine_check_whole(dw_engine_http *http, const char *name, bool *whole,
                                const dw_engine_label *label,
                                const dw_engine_update *update, dw_error *err)
{
    const bool is_known = !label->unsure && !label->owed && is_named(label);
    char wanted[DW_LABEL_SIZE] = "";
    if (update && update->version != DW_NO_VERSION)
        dw_engine_label_write(wanted, update);
    if (!*whole && is_known)
        *whole = strcmp(label->text, wanted) == 0 ||
                 /* an older engine may still say what it was before an update */
                 set_label(http, label->text, NULL) == DW_OK;
    if (*whole)
        return DW_OK;
    return dw_fail(err, DW_CONFLICT, http->url,
                   "%s is not resumed: it may be in the middle of an update. "
                   "It is resumed after its next update",
                   name);
}

void dw_engine_software(char out[64], const char *name, const char *version)
{
    size_t n = (size_t)snprintf(out, 64, "%s%s", name, version ? " " : "");
    for (; version && *version && n < 63; version++)
        if (*version > ' ' && *version <= '~')
            out[n++] = *version;
    out[n] = '\0';
}
