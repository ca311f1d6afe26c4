/* vLLM's control interface, by which `deltawire follow --engine vllm=URL` drives this
 * server (docs/OPERATIONS.md). The weights are mapped, so there is nothing to load: an
 * update only checks that the directory holds the announced version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout.h"

static void say(web_call *call, const char *member, const char *text)
{
    web_reply(call, 200, json_pack("{s:s}", member, text));
}

static void answer_weight_info(const rollout *r, web_call *call)
{
    say(call, "weight_version", r->version != DW_NO_VERSION ? r->label : "default");
}

static void answer_pause(rollout *r, web_call *call)
{
    const char *mode = web_query(call, "mode");
    if (!mode || strcmp(mode, "keep") != 0) {
        web_refuse(call, 400, "this server is paused with ?mode=keep: requests wait");
        return;
    }
    serving_pause(r->serving);
    say(call, "status", "paused");
}

static void answer_start(rollout *r, web_call *call)
{
    if (r->in_update) {
        web_refuse(call, 500,
                   "start_weight_update called while a weight update is already active. "
                   "Call finish_weight_update first.");
        return;
    }
    r->in_update = true;
    say(call, "message", "Weight update started");
}

/* Whether the update is accepted; else it was refused. */
static bool check_update(rollout *r, web_call *call, const json_t *info,
                         json_int_t *version, dw_digest *state)
{
    const json_t *from = json_object_get(info, "from_version");
    const char *kind = "", *format = "", *digest = "";
    char *end = NULL;
    if (json_unpack((json_t *)info, "{s:s,s:s,s:I,s:s}", "format", &format, "kind", &kind,
                    "version", version, "state", &digest) != 0 ||
        strcmp(format, "deltawire/1") != 0 || *version < 0) {
        web_refuse(call, 400, "update_info is not deltawire/1");
        return false;
    }
    *state = strtoull(digest, &end, 16);
    const bool is_patch = strcmp(kind, "patch") == 0;
    if (strlen(digest) != 16 || *end != '\0' ||
        (!is_patch && strcmp(kind, "snapshot") != 0)) {
        web_refuse(call, 400, "update_info has no digest, or is of an unknown kind");
        return false;
    }
    if (is_patch && (!json_is_integer(from) || r->version == DW_NO_VERSION ||
                     (uint64_t)json_integer_value(from) != r->version)) {
        web_refuse(call, 500, "the patch starts from another version than is served");
        return false;
    }
    return true;
}

static void answer_update(rollout *r, web_call *call)
{
    const json_t *info = json_object_get(web_body(call), "update_info");
    json_int_t version = 0;
    dw_digest state = 0;
    dw_error err;
    if (!json_is_object(info)) {
        web_refuse(call, 400, "update_info is missing");
        return;
    }
    if (!r->in_update) {
        web_refuse(call, 500,
                   "start_weight_update must be called before update_weights.");
        return;
    }
    if (!serving_is_paused(r->serving)) {
        web_refuse(call, 500, "the server is not paused: POST /pause?mode=keep first");
        return;
    }
    bool good = check_update(r, call, info, &version, &state);
    if (good && serving_expect(r->serving, (uint64_t)version, state, &err) != DW_OK) {
        web_refuse(call, 500, "%s: %s", err.where, err.text);
        good = false;
    }
    r->in_update = good;
    if (good)
        say(call, "message", "Weights updated");
}

/* LABEL is STREAM:VERSION, or the number alone. */
static bool read_label(const json_t *label, uint64_t *version)
{
    const char *text = json_string_value(label);
    const char *colon = text ? strchr(text, ':') : NULL;
    const char *number = colon ? colon + 1 : text;
    char *end = NULL;
    if (!text || strlen(text) >= ROLLOUT_LABEL_BYTES || *number < '0' || *number > '9')
        return false;
    *version = strtoull(number, &end, 10);
    return *end == '\0';
}

static void answer_finish(rollout *r, web_call *call)
{
    const json_t *label = json_object_get(web_body(call), "weight_version");
    const bool is_labelled = label && !json_is_null(label);
    uint64_t version = 0;
    if (is_labelled && !read_label(label, &version)) {
        web_refuse(call, 400, "weight_version is to be STREAM:VERSION");
        return;
    }
    if (!r->in_update) {
        web_refuse(call, 500,
                   "finish_weight_update called without a matching start_weight_update.");
        return;
    }
    r->in_update = false;
    if (is_labelled) {
        r->version = version;
        strcpy(r->label, json_string_value(label));
    }
    say(call, "message", "Weight update finished");
}

bool control_answer(rollout *r, web_call *call)
{
    if (web_is(call, "GET", "/version")) {
        say(call, "version", "1.0.wordle-rollout");
    } else if (web_is(call, "GET", "/weight_info")) {
        answer_weight_info(r, call);
    } else if (web_is(call, "GET", "/is_paused")) {
        web_reply(call, 200,
                  json_pack("{s:b}", "is_paused", serving_is_paused(r->serving)));
    } else if (web_is(call, "GET", "/get_world_size")) {
        web_reply(call, 200, json_pack("{s:i}", "world_size", 1));
    } else if (web_is(call, "POST", "/init_weight_transfer_engine")) {
        say(call, "message", "Weight transfer initialized");
    } else if (web_is(call, "POST", "/pause")) {
        answer_pause(r, call);
    } else if (web_is(call, "POST", "/start_weight_update")) {
        answer_start(r, call);
    } else if (web_is(call, "POST", "/update_weights")) {
        answer_update(r, call);
    } else if (web_is(call, "POST", "/finish_weight_update")) {
        answer_finish(r, call);
    } else if (web_is(call, "POST", "/resume")) {
        serving_resume(r->serving);
        say(call, "status", "resumed");
    } else {
        return false;
    }
    return true;
}
