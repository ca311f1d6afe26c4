/* The engine of `make bench-pause`: vLLM's control interface over HTTP, and the least
 * that an engine must do for an update.
 *
 *     pause_engine PORT DIR mapped|own
 *
 * mapped: its weights are the files of DIR, so an update does nothing. own: it has a
 * copy, as vLLM has, and applies the patch, which it maps. It checks nothing; the engine
 * of the tests does (tests/engine/).
 */
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "codec/patch.h"
#include "deltawire/checkpoint.h"

enum { MAX_BODY = 16384 };

typedef struct body {
    size_t n;
    char bytes[MAX_BODY];
} body;

static char label[64] = "default";
static bool is_paused;
static dw_tensor *own; /* NULL: mapped */
static size_t n_tensors;

static void load_own(const char *dir)
{
    dw_error err;
    dw_checkpoint *ckpt;
    if (dw_checkpoint_open(&ckpt, dir, DW_CHECKPOINT_READ, &err) != DW_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
        exit(1);
    }
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n_tensors);
    if (!own) {
        own = calloc(n_tensors, sizeof *own);
        for (size_t i = 0; i < n_tensors; i++) {
            own[i] = tensors[i]; /* names and shapes belong to the map, which is kept */
            own[i].data = malloc(tensors[i].n_bytes);
        }
    }
    for (size_t i = 0; i < n_tensors; i++)
        memcpy(own[i].data, tensors[i].data, tensors[i].n_bytes);
}

static bool take_patch(const char *path)
{
    dw_patch *patch;
    dw_patch_goal goal;
    if (dw_patch_open(&patch, &goal, path, NULL) != DW_OK)
        return false;
    bool good = dw_patch_apply(patch, own, n_tensors, 0, NULL) == DW_OK;
    dw_patch_free(patch);
    return good;
}

static bool update(const char *text, size_t n)
{
    json_t *root = json_loadb(text, n, 0, NULL);
    const json_t *info = json_object_get(root, "update_info");
    const char *patch = json_string_value(json_object_get(info, "patch"));
    const char *dir = json_string_value(json_object_get(info, "dir"));
    bool good = dir != NULL;
    if (good && own && patch)
        good = take_patch(patch);
    else if (good && own)
        load_own(dir);
    json_decref(root);
    return good;
}

static void finish(const char *text, size_t n)
{
    json_t *root = json_loadb(text, n, 0, NULL);
    const char *version = json_string_value(json_object_get(root, "weight_version"));
    if (version)
        snprintf(label, sizeof label, "%s", version);
    json_decref(root);
}

/* One request at a time: the server has one thread. */
static unsigned answer(char out[128], const char *method, const char *path, const body *b)
{
    strcpy(out, "{\"message\":\"done\"}");
    if (strcmp(path, "/version") == 0)
        strcpy(out, "{\"version\":\"1.0.bench\"}");
    else if (strcmp(path, "/weight_info") == 0)
        snprintf(out, 128, "{\"weight_version\":\"%s\"}", label);
    else if (strcmp(path, "/is_paused") == 0)
        snprintf(out, 128, "{\"is_paused\":%s}", is_paused ? "true" : "false");
    else if (strcmp(method, "POST") != 0)
        return 404;
    else if (strcmp(path, "/pause") == 0) {
        is_paused = true;
        strcpy(out, "{\"status\":\"paused\"}");
    } else if (strcmp(path, "/resume") == 0) {
        is_paused = false;
        strcpy(out, "{\"status\":\"resumed\"}");
    } else if (strcmp(path, "/update_weights") == 0)
        return update(b->bytes, b->n) ? 200 : 500;
    else if (strcmp(path, "/finish_weight_update") == 0)
        finish(b->bytes, b->n);
    return 200;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection,
                              const char *path, const char *method, const char *version,
                              const char *upload, size_t *n_upload, void **kept)
{
    (void)context;
    (void)version;
    body *b = *kept;
    char text[128];
    if (!b)
        return (*kept = calloc(1, sizeof *b)) ? MHD_YES : MHD_NO;
    if (*n_upload > 0) {
        if (*n_upload > MAX_BODY - b->n)
            return MHD_NO;
        memcpy(b->bytes + b->n, upload, *n_upload);
        b->n += *n_upload;
        *n_upload = 0;
        return MHD_YES;
    }
    unsigned status = answer(text, method, path, b);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static void completed(void *context, struct MHD_Connection *connection, void **kept,
                      enum MHD_RequestTerminationCode code)
{
    (void)context;
    (void)connection;
    (void)code;
    free(*kept);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fputs("usage: pause_engine PORT DIR mapped|own\n", stderr);
        return 2;
    }
    if (strcmp(argv[3], "own") == 0)
        load_own(argv[2]);
    struct MHD_Daemon *server = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD, (uint16_t)atoi(argv[1]), NULL, NULL, handle,
        NULL, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
    if (!server) {
        fprintf(stderr, "cannot listen at port %s\n", argv[1]);
        return 1;
    }
    pause(); /* wait to be killed */
    return 0;
}
