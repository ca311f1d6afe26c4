/* vLLM's control interface, with a back end that takes `deltawire/1`. */
#include "api.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "published.h"
#include "weights.h"

static bool in_session; /* of the one thread that answers */

static void say_error(reply *r, unsigned status, const char *message)
{
    json_t *error =
        json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", message, "type",
                  status == 400 ? "Bad Request" : "InternalServerError", "param", "code",
                  (int)status);
    char *text = json_dumps(error, JSON_COMPACT);
    say(r, status, "%s", text ? text : "{}");
    free(text);
    json_decref(error);
}

static void say_rpc_error(reply *r, const char *message)
{
    char text[WHY_SIZE + 64];
    snprintf(text, sizeof text, "Call to collective_rpc method failed: %s", message);
    say_error(r, 500, text);
}

static void answer_version(const request *q, reply *r)
{
    (void)q;
    say(r, 200, "{\"version\":\"0.32.0\"}");
}

static void answer_weight_info(const request *q, reply *r)
{
    (void)q;
    say(r, 200, "{\"weight_version\":\"%s\"}", version_label());
}

static void answer_is_paused(const request *q, reply *r)
{
    (void)q;
    say(r, 200, "{\"is_paused\":%s}", weights_paused() ? "true" : "false");
}

static void answer_pause(const request *q, reply *r)
{
    if (!q->mode || strcmp(q->mode, "keep") != 0) {
        say_error(r, 400, "this engine is paused with mode=keep");
        return;
    }
    weights_pause();
    say(r, 200, "{\"status\":\"paused\"}");
}

static void answer_resume(const request *q, reply *r)
{
    (void)q;
    weights_resume();
    say(r, 200, "{\"status\":\"resumed\"}");
}

static void answer_start(const request *q, reply *r)
{
    (void)q;
    if (in_session) {
        say_rpc_error(r, "start_weight_update called while a weight update is already "
                         "active. Call finish_weight_update first.");
        return;
    }
    in_session = true;
    say(r, 200, "{\"message\":\"Weight update started\"}");
}

/* The back end: a worker's handling of update_info. */
static bool take(json_t *info, char *why)
{
    const char *format, *kind, *stream, *state, *dir;
    json_t *from, *patch;
    json_int_t version;
    json_error_t fault;
    if (json_unpack_ex(info, &fault, JSON_STRICT, "{s:s,s:s,s:s,s:o,s:I,s:s,s:s,s:o}",
                       "format", &format, "kind", &kind, "stream", &stream,
                       "from_version", &from, "version", &version, "state", &state, "dir",
                       &dir, "patch", &patch) != 0) {
        snprintf(why, WHY_SIZE, "Invalid update_info: %s", fault.text);
        return false;
    }
    if (strcmp(format, "deltawire/1") != 0 || strlen(stream) != 32 ||
        strlen(state) != 16 || dir[0] != '/' || version < 0)
        engine_fault("update_info is not what is documented");
    dw_digest digest = strtoull(state, NULL, 16);
    if (strcmp(kind, "snapshot") == 0 && json_is_null(from) && json_is_null(patch))
        return weights_take_dir(dir, (uint64_t)version, digest, why);
    if (strcmp(kind, "patch") != 0 || !json_is_integer(from) || !json_is_string(patch))
        engine_fault("update_info of kind '%s' is not what is documented", kind);
    uint64_t held = weights_version();
    if (held != (uint64_t)json_integer_value(from)) {
        snprintf(why, WHY_SIZE,
                 "the patch starts from version %" JSON_INTEGER_FORMAT
                 ", but the weights are version %" PRIi64,
                 json_integer_value(from), (int64_t)held);
        return false;
    }
    return weights_take_patch(json_string_value(patch), (uint64_t)version, digest, why);
}

static void answer_update(const request *q, reply *r)
{
    json_t *info = json_object_get(q->body, "update_info");
    char why[WHY_SIZE] = "an accident";
    if (!json_is_object(info)) {
        say_error(r, 400, "update_info is missing");
        return;
    }
    if (!in_session) {
        say_rpc_error(r, "start_weight_update must be called before update_weights.");
        return;
    }
    if (!weights_paused())
        engine_fault("an update came while the engine was serving");
    const mishap fate = mishap_of_update(q->fate);
    bool good = fate != MISHAP_FAIL_BEFORE && take(info, why);
    if (fate == MISHAP_FAIL_AFTER) {
        weights_spoil();
        good = false;
    }
    if (good) {
        note_update(json_is_null(json_object_get(info, "patch")) ? 's' : 'p');
        say(r, 200, "{\"message\":\"Weights updated\"}");
    } else {
        in_session = false;
        say_rpc_error(r, why);
    }
}

static void answer_finish(const request *q, reply *r)
{
    json_t *label = json_object_get(q->body, "weight_version");
    uint64_t version = 0;
    if (label && !json_is_null(label) && !take_label(label, &version)) {
        say_error(r, 400, "weight_version must be STREAM:VERSION");
        return;
    }
    if (!in_session) {
        say_rpc_error(r, "finish_weight_update called without a matching "
                         "start_weight_update.");
        return;
    }
    in_session = false;
    if (json_is_string(label))
        weights_set_version(version);
    say(r, 200, "{\"message\":\"Weight update finished\"}");
}

const route vllm_routes[] = {
    {"GET", "/version", answer_version},
    {"GET", "/weight_info", answer_weight_info},
    {"GET", "/is_paused", answer_is_paused},
    {"POST", "/pause", answer_pause},
    {"POST", "/resume", answer_resume},
    {"POST", "/start_weight_update", answer_start},
    {"POST", "/update_weights", answer_update},
    {"POST", "/finish_weight_update", answer_finish},
    {"POST", "/update_weight_version", answer_update_label},
    {0},
};
