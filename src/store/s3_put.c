/* Writes: one PUT or, for large objects, an upload in parts.
 *
 *     POST ?uploads                       -> upload id
 *     PUT  ?partNumber=N&uploadId=ID      -> ETag of each part, side by side
 *     POST ?uploadId=ID  list of ETags    the object appears
 *     DELETE ?uploadId=ID                 after a failure: else the parts stay, and cost
 *
 * Only a PUT is a conditional create on all servers. An upload in parts first checks if
 * the key is taken, and sends the condition with the request that completes it. Some
 * servers ignore that condition, and Google's knows none there; then the second of two
 * simultaneous writers wins.
 * Objects that must have one winner are small and are written by PUT.
 */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/s3_driver.h"
#include "store/store.h"

#define SINGLE_BYTES     (16ull << 20)
#define SIGNED_BYTES     (256ull << 10) /* larger bodies are not hashed: too costly */
#define LEAST_PART_BYTES (5ull << 20)   /* S3's minimum */
#define MAX_PARTS        10000
#define PUT_TRIES        3 /* if the server does not have what it says it has */

enum { MAX_ETAG = 256, MAX_UPLOAD_ID = 2048 };

typedef struct upload {
    dw_s3 *s3;
    const char *key;
    const dw_source *source;
    dw_put_mode mode;
    const dw_progress *progress;
    char *id;
    uint64_t part_bytes;
    size_t n_parts;
    size_t next;
    char **etags;
    void **buffers; /* at most one for each connection, for a source that is read by a
                       function */
    size_t n_buffers;
    void **free; /* the unused ones */
    size_t n_free;
} upload;

/* ---- buffers: all uploads together use at most 48 MiB ---- */

static uint64_t ticket_bytes(uint64_t n_bytes)
{
    const uint64_t most = DW_S3_BUFFER_BYTES - DW_S3_BUFFER_KEPT;
    return n_bytes < most ? n_bytes : most;
}

/* Waits up to WAIT_MS. Only an upload without a buffer may wait; otherwise two uploads
 * could wait for each other. */
static bool take_ticket(dw_s3 *s3, uint64_t n_bytes, unsigned wait_ms)
{
    n_bytes = ticket_bytes(n_bytes);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)wait_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s3->lock);
    while (wait_ms > 0 && s3->buffer_bytes_left < n_bytes)
        if (pthread_cond_timedwait(&s3->buffer_back, &s3->lock, &until) != 0)
            break;
    /* an upload of an anchor that takes minutes must not delay a version */
    bool got = s3->buffer_bytes_left >= n_bytes + (wait_ms > 0 ? 0 : DW_S3_BUFFER_KEPT);
    if (got)
        s3->buffer_bytes_left -= n_bytes;
    pthread_mutex_unlock(&s3->lock);
    return got;
}

static dw_status await_ticket(dw_s3 *s3, uint64_t n_bytes, const dw_progress *progress,
                              uint64_t bytes_total, dw_error *err)
{
    dw_status status = DW_OK;
    while (status == DW_OK && !take_ticket(s3, n_bytes, 100))
        status = dw_store_progress(progress, 0, bytes_total, s3->url, err);
    return status;
}

static void return_ticket(dw_s3 *s3, uint64_t n_bytes)
{
    pthread_mutex_lock(&s3->lock);
    s3->buffer_bytes_left += ticket_bytes(n_bytes);
    pthread_cond_broadcast(&s3->buffer_back);
    pthread_mutex_unlock(&s3->lock);
}

/* ---- parts ---- */

static dw_status take_buffer(upload *u, void **out, dw_error *err)
{
    *out = NULL;
    if (u->n_free > 0) {
        *out = u->free[--u->n_free];
        return DW_OK;
    }
    if (u->n_buffers > 0) {
        if (!take_ticket(u->s3, u->part_bytes, 0))
            return DW_OK; /* later, when one of our parts is done */
    } else {
        dw_status status =
            await_ticket(u->s3, u->part_bytes, u->progress, u->source->n_bytes, err);
        if (status != DW_OK)
            return status;
    }
    void *buffer = dw_alloc((size_t)u->part_bytes);
    if (!buffer) {
        return_ticket(u->s3, u->part_bytes);
        return dw_fail_memory(err, u->s3->url);
    }
    u->buffers[u->n_buffers++] = buffer;
    *out = buffer;
    return DW_OK;
}

static dw_status next_part(void *context, dw_s3_task *task, bool *got, bool *end,
                           dw_error *err)
{
    upload *u = context;
    *end = u->next == u->n_parts;
    if (*end)
        return DW_OK;
    uint64_t offset = u->next * u->part_bytes;
    uint64_t n = u->source->n_bytes - offset;
    if (n > u->part_bytes)
        n = u->part_bytes;
    const void *bytes = u->source->bytes;
    if (bytes) {
        bytes = (const uint8_t *)bytes + offset;
    } else {
        dw_status status = take_buffer(u, &task->buffer, err);
        if (status != DW_OK || !task->buffer)
            return status;
        status = dw_source_read(u->source, offset, task->buffer, (size_t)n, err);
        if (status != DW_OK)
            return status;
        bytes = task->buffer;
    }
    task->query_room.n_bytes = 0;
    dw_write_format(&task->query_room, "partNumber=%zu&uploadId=", u->next + 1);
    dw_percent_encode(&task->query_room, u->id, false);
    dw_write_u8(&task->query_room, 0);
    if (task->query_room.failed)
        return dw_fail_memory(err, u->s3->url);
    task->method = "PUT";
    task->key = u->key;
    task->needs_etag = true;
    task->query = (const char *)task->query_room.bytes;
    task->call.send = bytes;
    task->call.n_send = (size_t)n;
    task->number = u->next++;
    *got = true;
    return DW_OK;
}

static dw_status part_done(void *context, dw_s3_task *task, dw_error *err)
{
    upload *u = context;
    if (task->buffer)
        u->free[u->n_free++] = task->buffer;
    task->buffer = NULL;
    char where[DW_ERROR_WHERE_SIZE];
    const char *etag = dw_http_header(&task->call, "etag");
    if (!etag || strlen(etag) > MAX_ETAG)
        return dw_fail(err, DW_CORRUPT, dw_s3_where(u->s3, u->key, where),
                       "the server's ETag for part %zu of the upload is too long",
                       task->number + 1);
    u->etags[task->number] = dw_copy_string(etag);
    return u->etags[task->number] ? DW_OK : dw_fail_memory(err, u->s3->url);
}

/* ---- an upload in parts ---- */

static dw_status begin_upload(upload *u, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_s3_task task = {.method = "POST",
                       .key = u->key,
                       .query = "uploads=",
                       .read = dw_s3_upload_id_parse,
                       .into = &u->id};
    dw_status status = dw_s3_ask(u->s3, &task, NULL, err);
    if (status == DW_OK && strlen(u->id) > MAX_UPLOAD_ID)
        status = dw_fail(err, DW_CORRUPT, dw_s3_where(u->s3, u->key, where),
                         "the server's upload id is too long");
    dw_s3_task_release(&task);
    return status;
}

static dw_status send_parts(upload *u, dw_error *err)
{
    dw_s3_job job = {
        .link = &u->s3->put_link,
        .progress = u->progress,
        .bytes_total = u->source->n_bytes,
        .key = u->key,
        .next = next_part,
        .done = part_done,
        .context = u,
    };
    return dw_s3_run(u->s3, &job, err);
}

static bool name_upload(const upload *u, dw_s3_task *task)
{
    dw_write_text(&task->query_room, "uploadId=");
    dw_percent_encode(&task->query_room, u->id, false);
    dw_write_u8(&task->query_room, 0);
    task->query = (const char *)task->query_room.bytes;
    return !task->query_room.failed;
}

/* If a second try finds no such upload, the first one worked and its reply was lost, or
 * somebody removed the upload. */
static dw_status look_for_result(const upload *u, dw_error *err)
{
    dw_error missing;
    uint64_t n_bytes = 0;
    dw_status status = dw_s3_stat(u->s3, u->key, &n_bytes, NULL, &missing);
    char where[DW_ERROR_WHERE_SIZE];
    dw_s3_where(u->s3, u->key, where);
    if (status == DW_OK && u->mode == DW_PUT_CREATE)
        return dw_fail(err, DW_CONFLICT, where, "the object exists already");
    if (status == DW_OK && n_bytes == u->source->n_bytes)
        return DW_OK;
    return dw_fail(err, DW_UNAVAILABLE, where,
                   "the server lost the upload before it was complete");
}

/* After an ANSWER that does not show what became of the object: a create that was refused
 * with 412, or with 409, because others write the same name; or a success without an
 * ETag, which S3 sends with every object that it stored. Finds out if the object is
 * there. If it was to be created, the caller finds out whose it is. */
static dw_status look_for_object(const upload *u, int answer, bool *is_absent,
                                 dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    const bool create = u->mode == DW_PUT_CREATE;
    uint64_t n_bytes = 0;
    dw_s3_where(u->s3, u->key, where);
    dw_status status = dw_s3_stat(u->s3, u->key, &n_bytes, NULL, err);
    *is_absent = status == DW_NOT_FOUND ||
                 (status == DW_OK && !create && n_bytes != u->source->n_bytes);
    if (*is_absent)
        return dw_fail(err, DW_UNAVAILABLE, where,
                       "the server answered with %d, but does not have the object%s",
                       answer, answer == 409 ? ", which others write" : "");
    return status == DW_OK && create
               ? dw_fail(err, DW_CONFLICT, where, "the object exists already")
               : status;
}

static bool is_refused(const dw_s3_task *task, dw_status status)
{
    return status != DW_OK && status != DW_CANCELLED && task->create &&
           (task->call.status == 412 || task->call.status == 409);
}

static dw_status complete_upload(upload *u, dw_error *err)
{
    dw_writer body = {0};
    bool is_absent;
    dw_s3_complete_write(&body, u->etags, u->n_parts);
    dw_s3_task task = {
        .method = "POST",
        .key = u->key,
        .sign_payload = true,
        .read = dw_s3_complete_parse,
        .create = u->mode == DW_PUT_CREATE && !u->s3->is_google &&
                  atomic_load(&u->s3->conditional) != DW_S3_CONDITIONAL_NO,
    };
    task.call.send = body.bytes;
    task.call.n_send = body.n_bytes;
    dw_status status = body.failed || !name_upload(u, &task)
                           ? dw_fail_memory(err, u->s3->url)
                           : dw_s3_ask(u->s3, &task, NULL, err);
    /* Also if PUT is known to be conditional: uploads in parts may differ. */
    if (status == DW_UNSUPPORTED && task.create) {
        task.create = false;
        status = dw_s3_ask(u->s3, &task, NULL, err);
    }
    if ((task.retry.n_tries > 1 || task.call.sent_twice) &&
        strcmp(task.error.code, "NoSuchUpload") == 0)
        status = look_for_result(u, err);
    else if (is_refused(&task, status))
        status = look_for_object(u, task.call.status, &is_absent, err);
    dw_s3_task_release(&task);
    dw_writer_release(&body);
    return status;
}

static void abort_upload(upload *u)
{
    dw_s3_task task = {
        .method = "DELETE", .key = u->key, .max_tries = 3, .deadline_ms = 10000};
    if (name_upload(u, &task))
        dw_s3_ask(u->s3, &task, NULL, NULL);
    dw_s3_task_release(&task);
}

static void release_upload(upload *u)
{
    for (size_t i = 0; u->etags && i < u->n_parts; i++)
        dw_free(u->etags[i]);
    dw_free(u->etags);
    for (size_t i = 0; i < u->n_buffers; i++) {
        dw_free(u->buffers[i]);
        return_ticket(u->s3, u->part_bytes);
    }
    dw_free(u->buffers);
    dw_free(u->free);
    dw_free(u->id);
}

static dw_status put_in_parts(upload *u, dw_error *err)
{
    uint64_t n_bytes = u->source->n_bytes;
    if (u->part_bytes < LEAST_PART_BYTES)
        u->part_bytes = LEAST_PART_BYTES;
    if (n_bytes / u->part_bytes >= MAX_PARTS)
        u->part_bytes = n_bytes / MAX_PARTS + 1;
    u->n_parts = (size_t)((n_bytes + u->part_bytes - 1) / u->part_bytes);
    u->etags = dw_alloc_zeroed(u->n_parts, sizeof *u->etags);
    u->buffers = dw_alloc_zeroed(u->s3->n_connections, sizeof *u->buffers);
    u->free = dw_alloc_zeroed(u->s3->n_connections, sizeof *u->free);
    dw_status status = u->etags && u->buffers && u->free
                           ? begin_upload(u, err)
                           : dw_fail_memory(err, u->s3->url);
    if (status == DW_OK)
        status = send_parts(u, err);
    if (status == DW_OK)
        status = complete_upload(u, err);
    if (status != DW_OK && u->id)
        abort_upload(u);
    release_upload(u);
    return status;
}

/* ---- one PUT ---- */

/* Sends the object until it is clear what became of it. */
static dw_status send_single(const upload *u, const void *bytes, bool create,
                             dw_error *err)
{
    bool is_absent = true;
    dw_status status = DW_OK;
    for (unsigned tries = 0; is_absent && tries < PUT_TRIES; tries++) {
        dw_s3_task task = {
            .method = "PUT",
            .key = u->key,
            .create = create,
            .sign_payload = u->source->n_bytes <= SIGNED_BYTES,
        };
        task.call.send = bytes;
        task.call.n_send = (size_t)u->source->n_bytes;
        status = dw_s3_ask(u->s3, &task, u->progress, err);
        is_absent = false;
        if (is_refused(&task, status) ||
            (status == DW_OK && !dw_http_header(&task.call, "etag")))
            status = look_for_object(u, task.call.status, &is_absent, err);
        dw_s3_task_release(&task);
    }
    return status;
}

static dw_status refuse_taken(const upload *u, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_status status = dw_s3_stat(u->s3, u->key, NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, dw_s3_where(u->s3, u->key, where),
                       "the object exists already");
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status put_bytes(const upload *u, const void *bytes, dw_error *err)
{
    bool conditional = atomic_load(&u->s3->conditional) != DW_S3_CONDITIONAL_NO;
    if (u->mode != DW_PUT_CREATE)
        return send_single(u, bytes, false, err);
    if (conditional) {
        dw_status status = send_single(u, bytes, true, err);
        if (status != DW_UNSUPPORTED)
            return status;
        /* If the server is known to create conditionally, one reply of a proxy must not
         * change that: it keeps two writers apart. */
        int known = DW_S3_CONDITIONAL_UNKNOWN;
        atomic_compare_exchange_strong(&u->s3->conditional, &known, DW_S3_CONDITIONAL_NO);
        if (known == DW_S3_CONDITIONAL_YES)
            return status;
    }
    dw_status status = refuse_taken(u, err);
    return status == DW_OK ? send_single(u, bytes, false, err) : status;
}

static dw_status put_at_once(const upload *u, dw_error *err)
{
    uint64_t n_bytes = u->source->n_bytes;
    if (u->source->bytes || n_bytes == 0)
        return put_bytes(u, u->source->bytes, err);
    dw_status status = await_ticket(u->s3, n_bytes, u->progress, n_bytes, err);
    if (status != DW_OK)
        return status;
    void *buffer = dw_alloc((size_t)n_bytes);
    status = buffer ? dw_source_read(u->source, 0, buffer, (size_t)n_bytes, err)
                    : dw_fail_memory(err, u->s3->url);
    if (status == DW_OK)
        status = put_bytes(u, buffer, err);
    dw_free(buffer);
    return_ticket(u->s3, n_bytes);
    return status;
}

dw_status dw_s3_put(void *self, const char *key, const dw_source *source,
                    dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    dw_s3 *s3 = self;
    upload u = {
        .s3 = s3, .key = key, .source = source, .mode = mode, .progress = progress};
    pthread_mutex_lock(&s3->lock);
    u.part_bytes = dw_link_part_bytes(&s3->put_link, source->n_bytes);
    pthread_mutex_unlock(&s3->lock);
    uint64_t single = s3->part_bytes ? u.part_bytes : SINGLE_BYTES;
    if (single < LEAST_PART_BYTES)
        single = LEAST_PART_BYTES;
    if (source->n_bytes <= single)
        return put_at_once(&u, err);
    dw_status status = mode == DW_PUT_CREATE ? refuse_taken(&u, err) : DW_OK;
    return status == DW_OK ? put_in_parts(&u, err) : status;
}
