/* SGLang: its own HTTP control interface (docs/OPERATIONS.md).
 *
 *     probe     GET  /model_info, before 0.5.6 /get_model_info
 *     pause     POST /pause_generation              requests go back to the queue
 *     apply     POST /update_weight_version         no version is named until the end
 *               POST /update_weights_from_disk      the directory, whole
 *     resume    POST /continue_generation
 */
#include "engine/engine_int.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "deltawire/stream.h"
#include "engine/engine_http.h"

#define NO_ROUTE "SGLang 0.5.6 or later is needed"

typedef struct sglang {
    dw_engine_http http;
    char software[64]; /* empty: ask again */
    bool whole;        /* it took an update over, and none failed since */
    dw_engine_label label;
} sglang;

/* ---- probe ---- */

/* GETs PATH, or OLD_PATH if the engine has no PATH. */
static dw_status ask_either(sglang *g, const char *path, const char *old_path,
                            dw_json **out, dw_error *err)
{
    dw_engine_question question = {"GET", path, NULL, g->http.probe_ms, NO_ROUTE};
    dw_engine_answer answer;
    dw_status status = dw_engine_ask(&g->http, &question, &answer, err);
    if (answer.status == 404) {
        question.path = old_path;
        status = dw_engine_ask(&g->http, &question, &answer, err);
    }
    *out = answer.body;
    return status;
}

/* Only shown to people: a failure does not matter. */
static void ask_software(sglang *g)
{
    dw_json *info = NULL;
    if (ask_either(g, "/server_info", "/get_server_info", &info, NULL) == DW_OK)
        dw_engine_software(g->software, "SGLang", dw_engine_text(info, "version"));
    dw_json_free(info);
}

static dw_status ask_label(sglang *g, dw_error *err)
{
    dw_json *info = NULL;
    dw_status status = ask_either(g, "/model_info", "/get_model_info", &info, err);
    if (status != DW_OK) {
        g->software[0] = '\0'; /* another process may come back */
        return status;
    }
    const char *label = dw_engine_text(info, "weight_version");
    const bool has_label = label != NULL;
    if (has_label)
        dw_engine_label_found(&g->label, label);
    dw_json_free(info);
    if (has_label)
        return DW_OK;
    if (!g->software[0])
        ask_software(g);
    return dw_fail(err, DW_UNSUPPORTED, g->http.url,
                   "%s does not say which weights it serves: SGLang 0.5.6 or later "
                   "is needed",
                   g->software[0] ? g->software : "what listens there");
}

static dw_status probe(void *self, dw_engine_info *out, dw_error *err)
{
    sglang *g = self;
    dw_status status = ask_label(g, err);
    if (status == DW_OK)
        out->version = g->label.version;
    if (status == DW_OK && !g->software[0])
        ask_software(g);
    memcpy(out->software, g->software, sizeof out->software);
    return status;
}

/* ---- pause and resume ---- */

static dw_status pause_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    sglang *g = self;
    (void)update;
    /* `retract` keeps running requests and drops what was computed with the old weights.
     * `in_place` would keep that too, and the cache could not be flushed; `abort` would
     * lose requests */
    dw_engine_question question = {"POST", "/pause_generation", "{\"mode\":\"retract\"}",
                                   g->http.pause_ms, NO_ROUTE};
    return dw_engine_order(&g->http, &question, "ok", err);
}

static dw_status resume_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    sglang *g = self;
    /* SGLang does not report if a killed process left it in the middle of an update */
    dw_status status =
        dw_engine_check_whole(&g->http, "SGLang", &g->whole, &g->label, update, err);
    if (status == DW_OK)
        status = dw_engine_restore_label(&g->http, &g->label, err);
    if (status != DW_OK)
        return status;
    dw_engine_question question = {"POST", "/continue_generation", "{}", g->http.pause_ms,
                                   NO_ROUTE};
    return dw_engine_order(&g->http, &question, "ok", err);
}

/* ---- apply ---- */

static dw_status take_directory(sglang *g, const char *json, int *http_status,
                                dw_error *err)
{
    dw_engine_question question = {"POST", "/update_weights_from_disk", json,
                                   g->http.apply_ms, NO_ROUTE};
    dw_engine_answer answer;
    dw_status status = dw_engine_ask(&g->http, &question, &answer, err);
    *http_status = answer.status;
    if (status != DW_OK)
        return status;
    bool success = false;
    if (!dw_json_bool(dw_json_get(answer.body, "success"), &success)) {
        status = dw_engine_nonsense(&g->http, &question,
                                    "it does not confirm the request", err);
    } else if (!success) {
        status =
            dw_fail(err, DW_CONFLICT, g->http.url, "SGLang did not take the weights: %s",
                    *answer.words ? answer.words : "it does not say why");
    }
    dw_json_free(answer.body);
    return status;
}

/* Looks at the label before it goes. If it is another one than before, the engine was
 * restarted: it is whole if that label shows it. */
static dw_status find_whole(sglang *g, dw_error *err)
{
    const dw_engine_label before = g->label;
    if (before.unsure)
        return DW_OK; /* it is taken for what is known of it */
    dw_status status = ask_label(g, err);
    if (status == DW_OK &&
        (before.owed != g->label.owed || strcmp(before.text, g->label.text) != 0))
        g->whole = false;
    if (status == DW_OK)
        (void)dw_engine_check_whole(&g->http, "SGLang", &g->whole, &g->label, NULL, NULL);
    return status;
}

static dw_status apply(void *self, const dw_engine_update *update, bool *whole,
                       dw_error *err)
{
    sglang *g = self;
    *whole = g->whole;
    if (!update->dir)
        return dw_fail(err, DW_UNSUPPORTED, g->http.url,
                       "SGLang is given weights in a directory, not in memory");
    if (!dw_utf8_valid(update->dir))
        return dw_fail(err, DW_INVALID, update->dir,
                       "the path is not UTF-8: JSON cannot carry it");
    dw_status status = find_whole(g, err);
    *whole = g->whole;
    if (status == DW_OK)
        status = dw_engine_drop_label(&g->http, &g->label, err);
    if (status != DW_OK)
        return status;
    char label[DW_LABEL_SIZE];
    dw_engine_label_write(label, update);
    dw_writer json = {0};
    dw_write_text(&json, "{\"model_path\":");
    dw_write_json_string(&json, update->dir);
    dw_write_format(&json,
                    ",\"weight_version\":\"%s\",\"flush_cache\":true,"
                    "\"abort_all_requests\":false}",
                    label);
    dw_write_u8(&json, 0);
    int http_status = 0;
    status = json.failed ? dw_fail_memory(err, g->http.url)
                         : take_directory(g, (const char *)json.bytes, &http_status, err);
    bool tried = !json.failed;
    dw_writer_release(&json);
    /* the server itself refused, before any worker was involved */
    bool untouched =
        !tried || http_status == 401 || http_status == 403 || http_status == 404;
    g->whole = status == DW_OK || (untouched && g->whole);
    dw_engine_label_updated(&g->label, update, status, g->whole);
    *whole = g->whole;
    return status;
}

/* ---- opening ---- */

static void close_driver(void *self)
{
    sglang *g = self;
    dw_engine_http_release(&g->http);
    dw_free(g);
}

static const dw_engine_driver sglang_driver = {
    .name = "sglang",
    .probe = probe,
    .pause = pause_engine,
    .apply = apply,
    .resume = resume_engine,
    .close = close_driver,
};

dw_status dw_sglang_open(dw_engine **out, const char *url,
                         const dw_engine_options *options, dw_error *err)
{
    sglang *g = dw_alloc_zeroed(1, sizeof *g);
    if (!g)
        return dw_fail_memory(err, url);
    g->label = DW_LABEL_UNKNOWN;
    dw_status status = dw_engine_http_init(&g->http, url, options, err);
    if (status == DW_OK)
        status = dw_engine_new(out, &sglang_driver, g, g->http.url, &g->http.gone, err);
    if (status == DW_OK)
        (*out)->own_weights = true;
    else
        close_driver(g);
    return status;
}
