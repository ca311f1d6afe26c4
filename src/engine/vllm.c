/* vLLM: its own HTTP control interface (docs/OPERATIONS.md).
 *
 *     probe     GET  /version, /weight_info
 *     pause     POST /pause?mode=keep     requests wait, caches are dropped
 *     apply     POST /update_weight_version: no version is named until the end,
 *               POST /start_weight_update, GET /is_paused,
 *               POST /update_weights, /finish_weight_update
 *     resume    POST /resume
 *
 * An update's session is a flag in vLLM's workers. It outlives the process that set it.
 */
#include "engine/engine_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "deltawire/stream.h"
#include "engine/engine_http.h"

#define NO_ROUTE                                                                         \
    "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; 0.28 or later is needed"

/* clear_cache stays at its default, true: else old keys and values would be used with new
 * weights */
#define PAUSE "/pause?mode=keep"

typedef struct vllm {
    dw_engine_http http;
    /* Its weights are known to be one version's: it was found serving, or it took an
     * update over, and no update has failed since. If an engine is found paused, a killed
     * process may have left it in the middle of an update. */
    bool whole;
    dw_engine_label label;
} vllm;

/* ---- probe ---- */

static dw_status ask_text(vllm *v, const char *path, const char *member, char *out,
                          size_t n_out, int *http_status, dw_error *err)
{
    dw_engine_question question = {"GET", path, NULL, v->http.probe_ms, NO_ROUTE};
    dw_engine_answer answer;
    dw_status status = dw_engine_ask(&v->http, &question, &answer, err);
    *http_status = answer.status;
    if (status != DW_OK)
        return status;
    const char *text = dw_engine_text(answer.body, member);
    if (text)
        snprintf(out, n_out, "%s", text);
    else
        status =
            dw_engine_nonsense(&v->http, &question, "vLLM names a version there", err);
    dw_json_free(answer.body);
    return status;
}

static dw_status ask_paused(vllm *v, bool *paused, dw_error *err)
{
    dw_engine_question question = {"GET", "/is_paused", NULL, v->http.probe_ms, NO_ROUTE};
    dw_engine_answer answer;
    dw_status status = dw_engine_ask(&v->http, &question, &answer, err);
    if (status != DW_OK)
        return status;
    *paused = false;
    if (!dw_json_bool(dw_json_get(answer.body, "is_paused"), paused))
        status = dw_engine_nonsense(&v->http, &question,
                                    "it does not say whether it is paused", err);
    dw_json_free(answer.body);
    return status;
}

/* Whether VERSION, "0.32.0" or "0.11.1.dev3+g12ab", is below 0.28. */
static bool is_old(const char *version)
{
    char *end;
    unsigned long major = strtoul(version, &end, 10);
    unsigned long minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
    return end != version && major == 0 && minor < 28;
}

/* There is no /weight_info: is this vLLM old, or does it hide its routes? */
static dw_status explain_missing(vllm *v, const char *version, dw_error *err)
{
    bool paused;
    bool has_routes = ask_paused(v, &paused, NULL) == DW_OK;
    if (has_routes || is_old(version))
        return dw_fail(err, DW_UNSUPPORTED, v->http.url,
                       "vLLM %.40s is too old: it cannot say which weights it serves; "
                       "0.28 or later is needed",
                       version);
    return dw_fail(err, DW_UNSUPPORTED, v->http.url,
                   "vLLM %.40s does not show its control interface: start it with "
                   "VLLM_SERVER_DEV_MODE=1 in its environment",
                   version);
}

static dw_status probe(void *self, dw_engine_info *out, dw_error *err)
{
    vllm *v = self;
    char version[64] = "", label[DW_LABEL_SIZE] = "";
    int http_status;
    dw_status status =
        ask_text(v, "/version", "version", version, sizeof version, &http_status, err);
    if (http_status == 404)
        return dw_fail(err, DW_UNSUPPORTED, v->http.url,
                       "there is no /version: what listens there is not vLLM");
    if (status != DW_OK)
        return status;
    dw_engine_software(out->software, "vLLM", version);
    status = ask_text(v, "/weight_info", "weight_version", label, sizeof label,
                      &http_status, err);
    if (http_status == 404)
        return explain_missing(v, version, err);
    if (status == DW_OK) {
        dw_engine_label_found(&v->label, label);
        out->version = v->label.version;
    }
    return status;
}

/* ---- pause and resume ---- */

static dw_status switch_to(vllm *v, const char *path, const char *done, dw_error *err)
{
    dw_engine_question question = {"POST", path, NULL, v->http.pause_ms, NO_ROUTE};
    return dw_engine_order(&v->http, &question, done, err);
}

/* One that serves is whole. */
static dw_status find_whole(vllm *v, dw_error *err)
{
    bool paused = true;
    dw_status status = v->whole ? DW_OK : ask_paused(v, &paused, err);
    v->whole = v->whole || !paused;
    return status;
}

static dw_status pause_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    vllm *v = self;
    (void)update;
    dw_status status = find_whole(v, err);
    return status == DW_OK ? switch_to(v, PAUSE, "paused", err) : status;
}

/* The label that an update took away comes back. If the engine is not paused, it was
 * restarted after the pause, and its label was another one. */
static dw_status restore_label(vllm *v, dw_error *err)
{
    bool paused = true;
    dw_status status = v->label.owed ? ask_paused(v, &paused, err) : DW_OK;
    if (!paused)
        strcpy(v->label.text, DW_FIRST_LABEL);
    return status == DW_OK ? dw_engine_restore_label(&v->http, &v->label, err) : status;
}

static dw_status resume_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    vllm *v = self;
    dw_status status = find_whole(v, err);
    if (status == DW_OK)
        status =
            dw_engine_check_whole(&v->http, "vLLM", &v->whole, &v->label, update, err);
    if (status == DW_OK)
        status = restore_label(v, err);
    return status == DW_OK ? switch_to(v, "/resume", "resumed", err) : status;
}

/* ---- apply ---- */

/* vLLM answers each request with {"message": "..."}. Another program does not, nor does a
 * proxy that turns a failure into 200. */
static bool says_done(const dw_json *body)
{
    return dw_json_string(dw_json_get(body, "message")) && !dw_json_get(body, "error") &&
           !dw_json_get(body, "detail");
}

/* Releases the body of ANSWER. */
static dw_status post(vllm *v, const char *path, const char *json,
                      dw_engine_answer *answer, dw_error *err)
{
    dw_engine_question question = {"POST", path, json, v->http.apply_ms, NO_ROUTE};
    dw_status status = dw_engine_ask(&v->http, &question, answer, err);
    if (status == DW_OK && !says_done(answer->body))
        status = dw_engine_nonsense(&v->http, &question,
                                    "vLLM answers with a message there", err);
    dw_json_free(answer->body);
    answer->body = NULL;
    return status;
}

static dw_status start(vllm *v, dw_error *err)
{
    static const char path[] = "/start_weight_update";
    dw_engine_answer answer;
    dw_status status = post(v, path, "{}", &answer, err);
    if (strstr(answer.words, "already active")) {
        /* another process did not finish its session: what it did is not known */
        v->whole = false;
        status =
            post(v, "/finish_weight_update", "{\"weight_version\":null}", &answer, err);
        if (status == DW_OK)
            status = post(v, path, "{}", &answer, err);
    }
    if (strstr(answer.words, "not configured"))
        return dw_fail(err, DW_UNSUPPORTED, v->http.url,
                       "vLLM has no back end for weights: start it with "
                       "--weight-transfer-config '{\"backend\":\"deltawire\"}'");
    return status;
}

/* If the engine was restarted after the pause, it serves, and has the first label again.
 * This is asked after `start`: an engine that restarts later has no session and takes no
 * update. */
static dw_status stay_paused(vllm *v, dw_error *err)
{
    bool paused = false;
    dw_status status = ask_paused(v, &paused, err);
    if (status != DW_OK || paused)
        return status;
    v->label = DW_LABEL_UNKNOWN;
    strcpy(v->label.text, DW_FIRST_LABEL);
    status = switch_to(v, PAUSE, "paused", err);
    return status == DW_OK ? dw_engine_drop_label(&v->http, &v->label, err) : status;
}

static void write_member(dw_writer *w, const char *name, const char *text)
{
    dw_write_format(w, ",\"%s\":", name);
    if (text)
        dw_write_json_string(w, text);
    else
        dw_write_text(w, "null");
}

static void write_update(dw_writer *w, const dw_engine_update *update)
{
    dw_write_format(w, "{\"update_info\":{\"format\":\"deltawire/1\",\"kind\":\"%s\"",
                    update->patch ? "patch" : "snapshot");
    write_member(w, "stream", update->stream);
    if (update->patch)
        dw_write_format(w, ",\"from_version\":%" PRIu64, update->from);
    else
        dw_write_text(w, ",\"from_version\":null");
    dw_write_format(w, ",\"version\":%" PRIu64 ",\"state\":\"%016" PRIx64 "\"",
                    update->version, update->state);
    write_member(w, "dir", update->dir);
    write_member(w, "patch", update->patch);
    dw_write_text(w, "}}");
    dw_write_u8(w, 0);
}

static dw_status check_update(const vllm *v, const dw_engine_update *update,
                              dw_error *err)
{
    if (!update->dir)
        return dw_fail(err, DW_UNSUPPORTED, v->http.url,
                       "vLLM is given weights in a directory, not in memory");
    const char *texts[] = {update->stream, update->dir, update->patch};
    for (size_t i = 0; i < 3; i++)
        if (texts[i] && !dw_utf8_valid(texts[i]))
            return dw_fail(err, DW_INVALID, texts[i],
                           "the path is not UTF-8: JSON cannot carry it");
    return DW_OK;
}

static dw_status transfer(vllm *v, const dw_engine_update *update, dw_error *err)
{
    dw_engine_answer answer;
    dw_writer json = {0};
    write_update(&json, update);
    if (json.failed) {
        dw_writer_release(&json);
        return dw_fail_memory(err, v->http.url);
    }
    bool was_whole = v->whole;
    v->whole = false;
    dw_status status = post(v, "/update_weights", (const char *)json.bytes, &answer, err);
    dw_writer_release(&json);
    /* the server itself refused, before any worker was involved, or the worker did */
    if (answer.status == 400 || answer.status == 401 || answer.status == 403 ||
        answer.status == 404 || strstr(answer.words, "nothing was stored"))
        v->whole = was_whole;
    return status;
}

static dw_status finish(vllm *v, const dw_engine_update *update, dw_error *err)
{
    char label[DW_LABEL_SIZE], json[2 * DW_LABEL_SIZE];
    dw_engine_answer answer;
    dw_engine_label_write(label, update);
    snprintf(json, sizeof json, "{\"weight_version\":\"%s\"}", label);
    return post(v, "/finish_weight_update", json, &answer, err);
}

static dw_status apply(void *self, const dw_engine_update *update, bool *whole,
                       dw_error *err)
{
    vllm *v = self;
    dw_status status = check_update(v, update, err);
    if (status == DW_OK) {
        (void)dw_engine_check_whole(&v->http, "vLLM", &v->whole, &v->label, NULL, NULL);
        status = dw_engine_drop_label(&v->http, &v->label, err);
    }
    if (status == DW_OK)
        status = start(v, err);
    if (status == DW_OK) {
        status = stay_paused(v, err);
        /* the back end may already have freed weights */
        v->whole = v->whole && status == DW_OK;
    }
    if (status == DW_OK)
        status = transfer(v, update, err);
    if (status == DW_OK)
        status = finish(v, update, err);
    if (status == DW_OK)
        v->whole = true;
    dw_engine_label_updated(&v->label, update, status, v->whole);
    *whole = v->whole;
    return status;
}

/* ---- opening ---- */

static void close_driver(void *self)
{
    vllm *v = self;
    dw_engine_http_release(&v->http);
    dw_free(v);
}

static const dw_engine_driver vllm_driver = {
    .name = "vllm",
    .probe = probe,
    .pause = pause_engine,
    .apply = apply,
    .resume = resume_engine,
    .close = close_driver,
};

dw_status dw_vllm_open(dw_engine **out, const char *url, const dw_engine_options *options,
                       dw_error *err)
{
    vllm *v = dw_alloc_zeroed(1, sizeof *v);
    if (!v)
        return dw_fail_memory(err, url);
    v->label = DW_LABEL_UNKNOWN;
    dw_status status = dw_engine_http_init(&v->http, url, options, err);
    if (status == DW_OK)
        status = dw_engine_new(out, &vllm_driver, v, v->http.url, &v->http.gone, err);
    if (status == DW_OK)
        (*out)->own_weights = true;
    else
        close_driver(v);
    return status;
}
