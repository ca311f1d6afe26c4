/* Reads. All parts of a read must be of the same object. Objects are written once, and
 * not all servers support a condition on the ETag, so the sizes in the replies are
 * compared. */
#include "base/error.h"
#include "store/s3_driver.h"

typedef struct reading {
    dw_s3 *s3;
    const char *key;
    uint8_t *into;
    uint64_t offset;
    uint64_t next; /* offset of the next part in the object */
    uint64_t end;  /* offset of the end; lower once the size is known */
    uint64_t part_bytes;
    uint64_t least_missing; /* the lowest offset with a 416 */
    bool size_known;
    uint64_t object_bytes;
} reading;

static void fill_task(dw_s3_task *task, const char *key, uint64_t offset, void *into,
                      size_t n_bytes)
{
    task->method = "GET";
    task->key = key;
    task->call.offset = offset;
    task->call.into = into;
    task->call.n_into = n_bytes;
}

static dw_status next_part(void *context, dw_s3_task *task, bool *got, bool *end,
                           dw_error *err)
{
    (void)err;
    reading *r = context;
    *end = r->next >= r->end;
    if (*end)
        return DW_OK;
    uint64_t n = r->end - r->next;
    if (n > r->part_bytes)
        n = r->part_bytes;
    fill_task(task, r->key, r->next, r->into + (r->next - r->offset), (size_t)n);
    r->next += n;
    *got = true;
    return DW_OK;
}

static dw_status part_done(void *context, dw_s3_task *task, dw_error *err)
{
    reading *r = context;
    const dw_http_call *call = &task->call;
    bool differs = false;
    if (call->status == 416) {
        if (call->offset < r->least_missing)
            r->least_missing = call->offset;
    } else if (call->object_bytes != UINT64_MAX) { /* UINT64_MAX: not reported */
        differs = r->size_known && call->object_bytes != r->object_bytes;
        r->size_known = true;
        r->object_bytes = call->object_bytes;
    }
    if (differs || (r->size_known && r->object_bytes > r->least_missing)) {
        char where[DW_ERROR_WHERE_SIZE];
        return dw_fail(err, DW_UNAVAILABLE, dw_s3_where(r->s3, r->key, where),
                       "the object was replaced by another while it was read; read it "
                       "again");
    }
    if (r->least_missing < r->end)
        r->end = r->least_missing;
    if (r->size_known && r->object_bytes < r->end)
        r->end = r->object_bytes;
    return DW_OK;
}

static dw_status read_in_parts(reading *r, size_t n_bytes, const dw_progress *progress,
                               dw_error *err)
{
    dw_s3_job job = {
        .link = &r->s3->get_link,
        .progress = progress,
        .bytes_total = n_bytes,
        .key = r->key,
        .next = next_part,
        .done = part_done,
        .context = r,
    };
    return dw_s3_run(r->s3, &job, err);
}

static dw_status read_at_once(reading *r, size_t n_bytes, const dw_progress *progress,
                              dw_error *err)
{
    dw_s3_task task = {0};
    fill_task(&task, r->key, r->offset, r->into, n_bytes);
    dw_status status = dw_s3_ask(r->s3, &task, progress, err);
    if (status == DW_OK)
        status = part_done(r, &task, err);
    dw_s3_task_release(&task);
    return status;
}

dw_status dw_s3_get(void *self, const char *key, uint64_t offset, void *into,
                    size_t n_bytes, size_t *n_read, const dw_progress *progress,
                    dw_error *err)
{
    dw_s3 *s3 = self;
    *n_read = 0;
    if (n_bytes == 0) /* a range cannot be empty */
        return dw_s3_stat(self, key, NULL, NULL, err);
    reading r = {
        .s3 = s3,
        .key = key,
        .into = into,
        .offset = offset,
        .next = offset,
        .end = offset + n_bytes,
        .least_missing = UINT64_MAX,
    };
    pthread_mutex_lock(&s3->lock);
    r.part_bytes = dw_link_part_bytes(&s3->get_link, n_bytes);
    pthread_mutex_unlock(&s3->lock);
    dw_status status = n_bytes <= r.part_bytes
                           ? read_at_once(&r, n_bytes, progress, err)
                           : read_in_parts(&r, n_bytes, progress, err);
    if (status == DW_DENIED && s3->missing_is_403)
        return dw_s3_explain_403(s3, key, err);
    if (status == DW_OK && r.end > offset)
        *n_read = (size_t)(r.end - offset);
    return status;
}
