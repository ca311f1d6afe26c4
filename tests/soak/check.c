#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "process.h"
#include "truth.h"

static dw_error err;

static bool failed(const char *what, dw_status status)
{
    printf("%s: %s: %s: %s\n", what, dw_status_name(status), err.where, err.text);
    return false;
}

/* ---- the log ---- */

void soak_history_forget(soak_history *history)
{
    for (size_t i = 0; i < history->n; i++)
        free(history->commits[i].bytes);
    free(history->commits);
    *history = (soak_history){0};
}

static dw_status read_commit(dw_store *store, uint64_t version, struct soak_commit *out)
{
    enum { MOST = 1 << 20 };
    char key[64];
    snprintf(key, sizeof key, "commits/%020" PRIu64 ".json", version);
    out->bytes = malloc(MOST);
    if (!out->bytes)
        abort();
    dw_status status =
        dw_store_get(store, key, 0, out->bytes, MOST, &out->n_bytes, NULL, &err);
    if (status != DW_OK)
        free(out->bytes);
    else
        out->bytes = realloc(out->bytes, out->n_bytes + 1);
    return status;
}

static dw_status count_commit(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)entry;
    (void)error;
    ++*(uint64_t *)context;
    return DW_OK;
}

static bool is_same(const soak_history *history, dw_store *store, uint64_t version)
{
    const struct soak_commit *was = &history->commits[version];
    struct soak_commit now;
    dw_status status = read_commit(store, version, &now);
    if (status != DW_OK)
        return failed("a commit that was there", status);
    bool same =
        was->n_bytes == now.n_bytes && memcmp(was->bytes, now.bytes, now.n_bytes) == 0;
    if (!same)
        printf("commit %" PRIu64 " was %.*s\nand is now %.*s\n", version,
               (int)was->n_bytes, (char *)was->bytes, (int)now.n_bytes,
               (char *)now.bytes);
    free(now.bytes);
    return same;
}

static bool take_commit(soak_history *history, dw_store *store, dw_stream *stream,
                        uint64_t version)
{
    struct soak_commit commit;
    dw_status status = read_commit(store, version, &commit);
    if (status != DW_OK)
        return failed("a hole in the log", status);
    history->commits = realloc(history->commits, (history->n + 1) * sizeof commit);
    if (!history->commits)
        abort();
    history->commits[history->n++] = commit;
    dw_version_info info;
    status = dw_stream_version(stream, version, &info, &err);
    if (status != DW_OK)
        return failed("a new version", status);
    soak_model model;
    dw_digest digests[SOAK_TENSORS], state;
    struct soak_commit *taken = &history->commits[version];
    bool good = soak_step_of(&info, &taken->step);
    soak_model_make(&model);
    soak_model_set(&model, history->seed, taken->step);
    good = good && dw_digest_tensors(digests, &state, model.tensors, SOAK_TENSORS, 1,
                                     NULL, &err) == DW_OK;
    soak_model_free(&model);
    if (good && state == info.state)
        return true;
    printf("version %" PRIu64 " has not the digest of its step '%s'\n", version,
           info.step);
    return false;
}

bool soak_check_log(soak_history *history, dw_store *store)
{
    dw_stream *stream;
    uint64_t head, n_listed = 0;
    dw_status status = dw_stream_open(&stream, store, NULL, &err);
    if (status == DW_NOT_FOUND && history->n == 0)
        return true; /* nobody got that far */
    if (status != DW_OK)
        return failed("the stream", status);
    status = dw_stream_head(stream, &head, &err);
    bool good = status == DW_OK || (status == DW_NOT_FOUND && history->n == 0);
    if (!good)
        failed("the head", status);
    for (uint64_t v = 0; good && v < history->n; v++)
        good = is_same(history, store, v);
    for (uint64_t v = history->n; good && status == DW_OK && v <= head; v++)
        good = take_commit(history, store, stream, v);
    dw_stream_close(stream);
    if (good)
        good = dw_store_list(store, "commits/", NULL, count_commit, &n_listed, &err) ==
               DW_OK;
    if (good && n_listed != history->n) {
        printf("%" PRIu64 " commits are listed, %zu lead to the head\n", n_listed,
               history->n);
        good = false;
    }
    return good;
}

bool soak_check_acked(const soak_history *history, const char *path)
{
    uint64_t version, step;
    bool good = true;
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%" SCNu64 " %" SCNu64, &version, &step) == 2)
        if (version >= history->n || history->commits[version].step != step) {
            printf("version %" PRIu64 " of step %" PRIu64
                   " was reported as committed, %s\n",
                   version, step,
                   version < history->n ? "but is another step" : "but is not there");
            good = false;
        }
    if (file)
        fclose(file);
    unlink(path);
    return good;
}

/* ---- followers ---- */

static bool is_version(const soak_history *history, const dw_tensor *tensors,
                       size_t n_tensors, uint64_t version, const char *who)
{
    if (version < history->n &&
        soak_is_step(tensors, n_tensors, history->seed, history->commits[version].step))
        return true;
    printf("%s is not version %" PRIu64 "\n", who, version);
    return false;
}

/* Reads the directory's record: its version, and the one it was going to. */
typedef struct position {
    uint64_t at, next;
} position;

static position read_position(const char *dir)
{
    position p = {DW_NO_VERSION, DW_NO_VERSION};
    char path[SOAK_PATH], text[4096];
    snprintf(path, sizeof path, "%s/.deltawire/state.json", dir);
    FILE *file = fopen(path, "r");
    if (!file)
        return p;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char *next = strstr(text, "\"next\":");
    const char *version = next ? strstr(next, "\"version\":") : NULL;
    if (version)
        p.next = strtoull(version + 10, NULL, 10);
    if (next)
        *next = '\0';
    version = strstr(text, "\"version\":");
    if (version)
        p.at = strtoull(version + 10, NULL, 10);
    return p;
}

/* Reads the files without the follower's code. */
static bool files_are(const soak_history *history, const char *dir, uint64_t version)
{
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, dir, DW_CHECKPOINT_READ, &err);
    if (status != DW_OK)
        return failed("a follower's files", status);
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    bool good = is_version(history, tensors, n, version, dir);
    dw_checkpoint_close(ckpt);
    position p = read_position(dir);
    if (good && (p.at != version || p.next != DW_NO_VERSION)) {
        printf("%s: its file does not say that it is version %" PRIu64 " alone\n", dir,
               version);
        good = false;
    }
    return good;
}

static bool recovers(const soak_history *history, dw_store *store,
                     const dw_follow_options *options)
{
    const position left = read_position(options->into);
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, options, &err);
    if (status != DW_OK)
        return failed("a follower after a kill", status);
    uint64_t version = dw_follower_version(f);
    dw_follower_close(f);
    if (version != left.at && version != left.next) {
        printf("%s was at %" PRId64 ", to become %" PRId64 ", and is now %" PRId64 "\n",
               options->into, (int64_t)left.at, (int64_t)left.next, (int64_t)version);
        return false;
    }
    return version == DW_NO_VERSION || files_are(history, options->into, version);
}

bool soak_check_dir(const soak_history *history, dw_store *store, const char *dir,
                    const char *id, bool collect)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = dir;
    options.id = id;
    options.n_threads = 1;
    if (history->n == 0)
        return true;
    if (!recovers(history, store, &options))
        return false;
    if (collect && !soak_check_collect(store, 1))
        return false;
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, &options, &err);
    if (status != DW_OK)
        return failed("a follower", status);
    status = dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err);
    if (status == DW_OK)
        status = dw_follower_report(f, "stopped", NULL, &err);
    dw_follower_close(f);
    return status == DW_OK ? files_are(history, dir, history->n - 1)
                           : failed("a follower goes on", status);
}

bool soak_check_fresh(const soak_history *history, dw_store *store)
{
    if (history->n == 0)
        return true;
    soak_model memory;
    soak_model_make(&memory);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = memory.tensors;
    options.n_tensors = SOAK_TENSORS;
    options.n_threads = 1;
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, &options, &err);
    if (status == DW_OK)
        status = dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err);
    bool good = status == DW_OK ? is_version(history, memory.tensors, SOAK_TENSORS,
                                             history->n - 1, "a fresh follower")
                                : failed("a fresh follower", status);
    dw_follower_close(f);
    soak_model_free(&memory);
    return good;
}

/* ---- the stream as a whole ---- */

static void print_fault(void *context, const dw_error *fault)
{
    (void)context;
    printf("verify: %s: %s: %s\n", dw_status_name(fault->code), fault->where,
           fault->text);
}

bool soak_check_verify(dw_store *store)
{
    dw_stream *stream;
    dw_verify_report report;
    dw_status status = dw_stream_open(&stream, store, NULL, &err);
    if (status != DW_OK)
        return failed("verify", status);
    status = dw_stream_verify(stream, print_fault, NULL, NULL, &report, &err);
    dw_stream_close(stream);
    return status == DW_OK || failed("verify", status);
}

static void lowest(void *context, const dw_follower_info *follower)
{
    uint64_t *version = context;
    if (follower->version < *version)
        *version = follower->version;
}

bool soak_check_collect(dw_store *store, uint64_t n_keep)
{
    dw_stream *stream;
    dw_collect_report report;
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = n_keep};
    uint64_t lowest_listed = DW_NO_VERSION;
    dw_status status = dw_stream_open(&stream, store, NULL, &err);
    if (status != DW_OK)
        return failed("collect", status);
    status = dw_stream_followers(stream, lowest, &lowest_listed, &err);
    if (status == DW_OK)
        status = dw_stream_collect(stream, &options, &report, &err);
    dw_stream_close(stream);
    if (status != DW_OK)
        return failed("collect", status);
    if (report.floor > lowest_listed && report.floor > report.old_floor) {
        printf("the floor went to %" PRIu64 " above a follower at %" PRIu64 "\n",
               report.floor, lowest_listed);
        return false;
    }
    return true;
}
