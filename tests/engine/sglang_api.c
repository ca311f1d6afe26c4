/* SGLang's control interface. */
#include "api.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "published.h"
#include "weights.h"

static void answer_model_info(const request *q, reply *r)
{
    (void)q;
    say(r, 200, "{\"model_path\":\"test\",\"weight_version\":\"%s\"}", version_label());
}

static void answer_server_info(const request *q, reply *r)
{
    (void)q;
    say(r, 200, "{\"version\":\"0.5.23\",\"weight_version\":\"default\"}");
}

static void answer_pause(const request *q, reply *r)
{
    const char *mode = json_string_value(json_object_get(q->body, "mode"));
    if (!mode || strcmp(mode, "retract") != 0) {
        say(r, 400,
            "{\"object\":\"error\",\"message\":\"this engine is paused with "
            "retract\",\"code\":400}");
        return;
    }
    weights_pause();
    say(r, 200, "{\"message\":\"Generation paused successfully.\",\"status\":\"ok\"}");
}

static void answer_continue(const request *q, reply *r)
{
    if (!q->body) {
        say(r, 400, "{\"object\":\"error\",\"message\":\"no body\",\"code\":400}");
        return;
    }
    weights_resume();
    say(r, 200, "{\"message\":\"Generation continued successfully.\",\"status\":\"ok\"}");
}

static void answer_update(const request *q, reply *r)
{
    const char *dir = json_string_value(json_object_get(q->body, "model_path"));
    uint64_t version;
    char why[WHY_SIZE] = "an accident";
    if (!dir || !take_label(json_object_get(q->body, "weight_version"), &version)) {
        say(r, 400, "{\"object\":\"error\",\"message\":\"bad body\",\"code\":400}");
        return;
    }
    const bool good = weights_reload(dir, version, mishap_of_update(q->fate), why);
    if (good)
        note_update('s');
    if (good)
        say(r, 200,
            "{\"success\":true,\"message\":\"Succeeded to update model weights.\","
            "\"num_paused_requests\":0}");
    else
        say(r, 400, "{\"success\":false,\"message\":\"%s\"}", why);
}

const route sglang_routes[] = {
    {"GET", "/model_info", answer_model_info},
    {"GET", "/server_info", answer_server_info},
    {"POST", "/pause_generation", answer_pause},
    {"POST", "/continue_generation", answer_continue},
    {"POST", "/update_weights_from_disk", answer_update},
    {"POST", "/update_weight_version", answer_update_label},
    {0},
};
