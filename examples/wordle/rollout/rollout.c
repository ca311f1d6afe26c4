/* wordle-rollout: an inference server that follows a stream.
 *
 * One thread follows: it fetches, decodes and proves a version while the other one
 * serves, and changes the weights between two requests. So all samples of a request come
 * from one version.
 */
#include "rollout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: wordle-rollout --stream URL [--listen HOST:PORT]\n"
    "\n"
    "Serves the model of a stream, always with the newest version.\n"
    "\n"
    "  --stream URL        file:///DIR, s3://BUCKET/PREFIX, hf://...; may be empty yet\n"
    "  --listen HOST:PORT  the address; port 0: any free one (127.0.0.1:8000)\n"
    "\n"
    "POST /v1/completions as in OpenAI's API, with the version of the weights of each\n"
    "sample; GET /health, /digest. It prints its address and a line for each version, "
    "and\n"
    "ends on SIGTERM or SIGINT. Exit status: 0, 1 after a failure, 2 for wrong use.\n"
    "\n"
    "Example:\n"
    "    wordle-rollout --stream s3://bucket/run &\n"
    "    curl -d '{\"prompt\":\"WORDLE\\n\",\"max_tokens\":6}' \\\n"
    "        http://127.0.0.1:8000/v1/completions\n";

enum { MAX_BODY = 64 << 10, WAIT_MS = 1000, POLL_MS = 200 };

/* ---- following ---- */

static int asked_to_stop(void *context, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    return atomic_load(&((rollout *)context)->stop);
}

static dw_status open_follower(rollout *r, dw_error *err)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = r->tensors.list;
    options.n_tensors = MODEL_TENSORS;
    options.tensors_empty = true; /* nobody reads before there is a version */
    options.n_threads = 1;
    dw_status status = r->store ? DW_OK : dw_store_open(&r->store, r->url, NULL, err);
    return status == DW_OK ? dw_follower_open(&r->follower, r->store, &options, err)
                           : status;
}

/* The pause of the server: no request is computed meanwhile. */
static dw_status take_staged(rollout *r, uint64_t version, dw_error *err)
{
    struct timespec began, now;
    pthread_mutex_lock(&r->lock);
    clock_gettime(CLOCK_MONOTONIC, &began);
    dw_status status = dw_follower_apply(r->follower, err);
    r->version = status == DW_OK ? version : DW_NO_VERSION;
    if (status == DW_OK) {
        model_unpack(&r->weights, r->halves);
        snprintf(r->stream, sizeof r->stream, "%s",
                 dw_stream_id(dw_follower_stream(r->follower)));
        r->n_updates++;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_unlock(&r->lock);
    if (status == DW_OK)
        printf("version %" PRIu64 ", paused %.3f ms\n", version,
               (double)(now.tv_sec - began.tv_sec) * 1e3 +
                   (double)(now.tv_nsec - began.tv_nsec) / 1e6);
    fflush(stdout);
    return status == DW_OK ? dw_follower_finish(r->follower, err) : status;
}

static dw_status take_newest(rollout *r, dw_error *err)
{
    const dw_progress progress = {asked_to_stop, r};
    uint64_t newest, staged;
    dw_status status =
        dw_follower_wait(r->follower, &newest, WAIT_MS, POLL_MS, &progress, err);
    while (status == DW_OK && dw_follower_version(r->follower) != newest) {
        status = dw_follower_stage(r->follower, newest, &staged, &progress, err);
        if (status == DW_OK)
            status = take_staged(r, staged, err);
    }
    return status;
}

/* A store that cannot be reached costs only time. After other failures, such as a stream
 * that was removed and made anew, it begins with nothing. */
static void note_trouble(rollout *r, dw_status status, const dw_error *err)
{
    const struct timespec breath = {.tv_nsec = 200000000};
    const bool again = status != DW_UNAVAILABLE && status != DW_IO;
    pthread_mutex_lock(&r->lock);
    r->trouble = *err;
    if (again)
        r->version = DW_NO_VERSION;
    pthread_mutex_unlock(&r->lock);
    if (again) {
        dw_follower_close(r->follower);
        r->follower = NULL;
    }
    nanosleep(&breath, NULL);
}

static void *follow(void *context)
{
    rollout *r = context;
    while (!atomic_load(&r->stop)) {
        dw_error err;
        dw_status status = r->follower ? DW_OK : open_follower(r, &err);
        if (status == DW_OK)
            status = take_newest(r, &err);
        if (status != DW_OK)
            note_trouble(r, status, &err);
    }
    dw_follower_close(r->follower);
    dw_store_close(r->store);
    return NULL;
}

/* ---- requests ---- */

bool rollout_lock(rollout *r, web_call *call)
{
    pthread_mutex_lock(&r->lock);
    if (r->version != DW_NO_VERSION)
        return true;
    const dw_error err = r->trouble;
    pthread_mutex_unlock(&r->lock);
    web_refuse(call, 503, "there are no weights yet: %s: %s",
               err.where[0] ? err.where : r->url, err.text);
    return false;
}

/* The digest of the weights that it computes with. */
static void answer_digest(rollout *r, web_call *call)
{
    static uint16_t halves[MODEL_PARAMS]; /* of the one thread that answers */
    static model_tensors tensors;
    char version[24], digest[24], stream[sizeof r->stream];
    dw_digest state, each[MODEL_TENSORS];
    dw_error err;
    if (!rollout_lock(r, call))
        return;
    dw_cast_bf16(halves, r->weights.w, MODEL_PARAMS); /* exact */
    snprintf(version, sizeof version, "%" PRIu64, r->version);
    memcpy(stream, r->stream, sizeof stream);
    pthread_mutex_unlock(&r->lock);
    model_bind(&tensors, halves);
    if (dw_digest_tensors(each, &state, tensors.list, MODEL_TENSORS, 1, NULL, &err) !=
        DW_OK) {
        web_refuse(call, 500, "%s: %s", err.where, err.text);
        return;
    }
    snprintf(digest, sizeof digest, "%016" PRIx64, state);
    web_reply(call, 200,
              json_pack("{s:s,s:s,s:s}", "weight_version", version, "weight_stream",
                        stream, "digest", digest));
}

static void answer(void *context, web_call *call)
{
    rollout *r = context;
    if (web_is(call, "POST", "/v1/completions")) {
        completions_answer(r, call);
    } else if (web_is(call, "GET", "/digest")) {
        answer_digest(r, call);
    } else if (web_is(call, "GET", "/health") && rollout_lock(r, call)) {
        pthread_mutex_unlock(&r->lock);
        web_reply(call, 200, json_pack("{s:s}", "status", "ok"));
    }
}

int main(int argc, char **argv)
{
    static rollout r = {.version = DW_NO_VERSION}; /* large */
    const char *listen = "127.0.0.1:8000";
    const program_option options[] = {{.name = "stream", .text = &r.url},
                                      {.name = "listen", .text = &listen}};
    dw_error err;
    web *server;
    pthread_t follower;
    program_options("wordle-rollout", help, options, sizeof options / sizeof *options,
                    argc, argv);
    if (!r.url)
        program_misused("wordle-rollout", "--stream is needed");
    program_block_signals();
    pthread_mutex_init(&r.lock, NULL);
    model_bind(&r.tensors, r.halves);
    r.session = model_session_new(ROLLOUT_SEQS);
    dw_status status = r.session
                           ? web_start(&server, listen, MAX_BODY, answer, &r, &err)
                           : wordle_fail(&err, DW_NO_MEMORY, r.url, "out of memory");
    if (status != DW_OK)
        return program_fail("wordle-rollout", &err);
    printf("listening on %s\n", web_url(server)); /* before the lines of versions */
    fflush(stdout);
    if (pthread_create(&follower, NULL, follow, &r) == 0) {
        program_wait();
        atomic_store(&r.stop, true);
        pthread_join(follower, NULL);
    } else {
        status = wordle_fail(&err, DW_NO_MEMORY, r.url, "no thread can be started");
    }
    web_stop(server);
    model_session_free(r.session);
    return status == DW_OK ? 0 : program_fail("wordle-rollout", &err);
}
