/* deltawire.Publisher: the calls. */
#include "publisher_type.h"
#include "inner.h"

#include <limits.h>

enum { SLICE_MS = 100 }; /* between two checks for signals */

static dwpy_row_type report_row = {
    "PublishReport", "The report of a publish.",
    "version unchanged n_changed n_bytes n_objects state times "
    "restarted suspect_from upkeep_behind n_merged waited_ms removal_denied "
    "n_not_finite",
    NULL};

/* ---- waiting for tickets ---- */

typedef struct fate {
    dw_status status;
    bool done;
    dw_publish_report report;
    dw_error err;
} fate;

/* The time to wait next; *LEFT_MS is what remains. */
static unsigned next_slice(unsigned *left_ms)
{
    const unsigned slice = *left_ms < SLICE_MS ? *left_ms : SLICE_MS;
    if (*left_ms != UINT_MAX)
        *left_ms -= slice;
    return slice;
}

/* Returns false, with an exception, if it was closed. */
static bool wait_slice(publisher_object *self, uint64_t ticket, unsigned ms,
                       bool until_done, fate *out)
{
    bool closed = false;
    *out = (fate){0};
    Py_BEGIN_ALLOW_THREADS pthread_rwlock_rdlock(&self->alive);
    closed = !self->publisher;
    if (!closed && until_done)
        out->status = dw_publisher_wait(self->publisher, ticket, ms, &out->done,
                                        &out->report, &out->err);
    else if (!closed)
        out->status =
            dw_publisher_captured(self->publisher, ticket, ms, &out->done, &out->err);
    pthread_rwlock_unlock(&self->alive);
    Py_END_ALLOW_THREADS if (closed) dwpy_guard_check(&self->guard);
    return !closed;
}

/* A ticket that is not known, or no longer known, counts as done. */
static bool is_over(const fate *f, bool until_done)
{
    return f->done ||
           (f->status != DW_OK && !(until_done && f->status == DW_UNAVAILABLE));
}

/* Returns false with an exception if a signal came or it was closed. OUT->done is false
 * if the time was over. */
static bool wait_ticket(publisher_object *self, uint64_t ticket, unsigned timeout_ms,
                        bool until_done, fate *out)
{
    unsigned left_ms = timeout_ms;
    do {
        if (!dwpy_guard_check(&self->guard) ||
            !wait_slice(self, ticket, next_slice(&left_ms), until_done, out) ||
            PyErr_CheckSignals() != 0)
            return false;
        if (dwpy_is_ending()) {
            dwpy_raise_text(DW_CANCELLED, NULL, "the interpreter ends");
            return false;
        }
    } while (!is_over(out, until_done) && left_ms > 0);
    return true;
}

/* The first version that may be wrong, or None. */
static PyObject *suspect_of(const dw_publish_report *r)
{
    return dwpy_version(r->suspect_from > 0 ? r->suspect_from : DW_NO_VERSION);
}

static PyObject *report_of(const dw_publish_report *r)
{
    return dwpy_row(
        &report_row,
        Py_BuildValue(
            "KNKKKNNNNKKKNK", (unsigned long long)r->version,
            PyBool_FromLong(r->unchanged), (unsigned long long)r->n_changed,
            (unsigned long long)r->n_bytes, (unsigned long long)r->n_objects,
            dwpy_digest(r->state), dwpy_times(&r->times, dw_publish_moment_name),
            PyBool_FromLong(r->restarted), suspect_of(r),
            (unsigned long long)r->upkeep_behind, (unsigned long long)r->n_merged,
            (unsigned long long)r->waited_ms, PyBool_FromLong(r->removal_denied),
            (unsigned long long)r->n_not_finite));
}

/* There is no ticket: what opening published is committed. */
static PyObject *wait_opening(publisher_object *self)
{
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    return self->has_opening
               ? report_of(&self->opening)
               : dwpy_raise_text(DW_INVALID, NULL,
                                 "nothing was published since the publisher was opened: "
                                 "call publish() first");
}

static PyObject *publisher_wait(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ticket", "timeout", NULL};
    publisher_object *self = (publisher_object *)object;
    uint64_t ticket = self->ticket;
    unsigned timeout_ms = UINT_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&O&:wait", names, dwpy_number_arg,
                                     &ticket, dwpy_timeout_arg, &timeout_ms))
        return NULL;
    if (ticket == 0 && self->ticket == 0)
        return wait_opening(self);
    fate f;
    if (!wait_ticket(self, ticket, timeout_ms, true, &f))
        return NULL;
    if (!is_over(&f, true)) {
        PyErr_SetString(PyExc_TimeoutError, "the version is still in progress");
        return NULL;
    }
    if (ticket > self->reported_ticket)
        self->reported_ticket = ticket;
    if (f.status != DW_OK)
        return dwpy_raise(f.status, &f.err);
    return report_of(&f.report);
}

static PyObject *publisher_captured(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ticket", "timeout", NULL};
    publisher_object *self = (publisher_object *)object;
    uint64_t ticket = self->ticket;
    unsigned timeout_ms = UINT_MAX;
    fate f;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&O&:captured", names,
                                     dwpy_number_arg, &ticket, dwpy_timeout_arg,
                                     &timeout_ms))
        return NULL;
    if (ticket == 0 && self->ticket == 0) /* nothing was published */
        return dwpy_guard_check(&self->guard) ? Py_NewRef(Py_True) : NULL;
    if (!wait_ticket(self, ticket, timeout_ms, false, &f))
        return NULL;
    return f.status == DW_OK ? PyBool_FromLong(f.done) : dwpy_raise(f.status, &f.err);
}

/* ---- publishing; the guard is held ---- */

static PyObject *publish_now(publisher_object *self, dw_publish_note *note)
{
    uint64_t ticket = DW_TICKET_SKIPPED;
    dw_error err = {0};
    dwpy_hook hook;
    if (!dwpy_hook_begin(&hook, NULL, &self->guard))
        return NULL;
    note->progress = hook.progress;
    const dw_status status = dw_publisher_publish(self->publisher, &ticket, note, &err);
    if (ticket != DW_TICKET_SKIPPED)
        self->ticket = ticket;
    return dwpy_hook_end(&hook, status, &err) ? PyLong_FromUnsignedLongLong(ticket)
                                              : NULL;
}

static PyObject *publisher_publish(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"step", "notes", "unchanged", "files", "cuda_streams", NULL};
    publisher_object *self = (publisher_object *)object;
    PyObject *step = NULL, *unchanged = NULL, *files = NULL, *streams = NULL;
    dwpy_files companions = {0};
    dw_device_stream *list = NULL;
    dw_publish_note note = {.struct_bytes = sizeof note};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O&zOOO:publish", names,
                                     dwpy_step_arg, &step, &note.notes, &unchanged,
                                     &files, &streams))
        return NULL;
    note.step = dwpy_text(step);
    PyObject *ticket = NULL;
    bool *flags = NULL;
    if (dwpy_guard_enter(&self->guard)) {
        if (dwpy_tensors_check(&self->tensors) && dwpy_tensors_check(&self->shards) &&
            dwpy_publisher_flags(self, unchanged, "unchanged", &flags) &&
            dwpy_files_read(&companions, files) &&
            dwpy_publisher_streams(self, streams, &list, &note.n_streams)) {
            note.streams = list;
            note.unchanged = flags;
            note.files = companions.files;
            note.n_files = companions.n;
            note.has_files = companions.is_given;
            ticket = publish_now(self, &note);
        }
        dwpy_guard_leave(&self->guard);
    }
    dwpy_files_release(&companions);
    PyMem_Free(flags);
    PyMem_Free(list);
    Py_XDECREF(step);
    return ticket;
}

/* Waits in slices, so that a signal can end it. */
static PyObject *drain_now(publisher_object *self, unsigned timeout_ms)
{
    unsigned left_ms = timeout_ms;
    bool drained;
    do {
        const unsigned ms = next_slice(&left_ms);
        Py_BEGIN_ALLOW_THREADS drained = dw_publisher_drained(self->publisher, ms);
        Py_END_ALLOW_THREADS if (PyErr_CheckSignals() != 0) return NULL;
    } while (!drained && left_ms > 0 && !dwpy_is_ending() && !self->guard.is_closing);
    if (!drained) {
        PyErr_SetString(PyExc_TimeoutError, "folds and anchors are still being made");
        return NULL;
    }
    dw_error err = {0};
    dw_status status = dw_publisher_drain(self->publisher, &err);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

static PyObject *publisher_drain(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    publisher_object *self = (publisher_object *)object;
    unsigned timeout_ms = UINT_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:drain", names, dwpy_timeout_arg,
                                     &timeout_ms) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = drain_now(self, timeout_ms);
    dwpy_guard_leave(&self->guard);
    return out;
}

/* True, or false if the time is over: the last version is not in progress. */
static PyObject *publisher_idle(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    publisher_object *self = (publisher_object *)object;
    unsigned timeout_ms = UINT_MAX;
    fate f = {.done = true};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:idle", names, dwpy_timeout_arg,
                                     &timeout_ms) ||
        !dwpy_guard_check(&self->guard) ||
        (self->ticket != 0 && !wait_ticket(self, self->ticket, timeout_ms, true, &f)))
        return NULL;
    return PyBool_FromLong(is_over(&f, true));
}

/* The guard is held. */
static PyObject *is_current_now(publisher_object *self)
{
    bool is_current = false;
    dw_error err = {0};
    dw_status status;
    fate f;
    if (self->ticket != 0 && !wait_ticket(self, self->ticket, UINT_MAX, true, &f))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        dw_publisher_is_current(self->publisher, &is_current, &err);
    Py_END_ALLOW_THREADS return status == DW_OK ? PyBool_FromLong(is_current)
                                                : dwpy_raise(status, &err);
}

static PyObject *publisher_is_current(PyObject *object, PyObject *unused)
{
    (void)unused;
    publisher_object *self = (publisher_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out =
        dwpy_tensors_check(&self->tensors) && dwpy_tensors_check(&self->shards)
            ? is_current_now(self)
            : NULL;
    dwpy_guard_leave(&self->guard);
    return out;
}

static PyObject *publisher_cancel(PyObject *object, PyObject *unused)
{
    (void)unused;
    publisher_object *self = (publisher_object *)object;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    dw_publisher_cancel(self->publisher);
    Py_RETURN_NONE;
}

/* ---- the end ---- */

/* The result of the last version, if the caller does not have it yet. */
static PyObject *last_fate(publisher_object *self, const fate *f)
{
    const bool is_news = self->ticket > self->reported_ticket;
    self->reported_ticket = self->ticket;
    return !is_news || f->status == DW_OK ? Py_NewRef(Py_None)
                                          : dwpy_raise(f->status, &f->err);
}

static PyObject *close_now(publisher_object *self, unsigned timeout_ms)
{
    fate f = {.done = true};
    if (self->ticket != 0 && !wait_ticket(self, self->ticket, timeout_ms, true, &f))
        return NULL;
    if (!is_over(&f, true)) {
        dw_publisher_cancel(self->publisher);
        if (!wait_ticket(self, self->ticket, UINT_MAX, true, &f))
            return NULL;
    }
    dwpy_publisher_close_handle(self);
    return last_fate(self, &f);
}

static PyObject *publisher_close(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    publisher_object *self = (publisher_object *)object;
    unsigned timeout_ms = UINT_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:close", names, dwpy_timeout_arg,
                                     &timeout_ms))
        return NULL;
    if (self->guard.is_closed)
        Py_RETURN_NONE;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = close_now(self, timeout_ms);
    dwpy_guard_leave(&self->guard);
    return out;
}

static void publisher_dealloc(PyObject *object)
{
    publisher_object *self = (publisher_object *)object;
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    if (self->publisher)
        dwpy_publisher_end_bounded(self);
    dw_sign_key_close(self->sign_key);
    dwpy_publisher_drop(self);
    dwpy_store_leave(self->fork_store);
    dwpy_store_leave(self->store);
    Py_XDECREF(self->agree);
    PyErr_Restore(error[0], error[1], error[2]);
    dwpy_object_free(object);
}

/* ---- the type ---- */

static PyObject *get_stream_id(PyObject *object, void *unused)
{
    (void)unused;
    publisher_object *self = (publisher_object *)object;
    return dwpy_guard_check(&self->guard)
               ? dwpy_string(dw_publisher_stream_id(self->publisher))
               : NULL;
}

static PyObject *get_created(PyObject *object, void *unused)
{
    (void)unused;
    publisher_object *self = (publisher_object *)object;
    return dwpy_guard_check(&self->guard)
               ? PyBool_FromLong(dw_publisher_created(self->publisher))
               : NULL;
}

static PyObject *get_version(PyObject *object, void *unused)
{
    (void)unused;
    publisher_object *self = (publisher_object *)object;
    return dwpy_guard_check(&self->guard)
               ? dwpy_version(dw_publisher_version(self->publisher))
               : NULL;
}

static PyObject *get_ticket(PyObject *object, void *unused)
{
    (void)unused;
    const publisher_object *self = (const publisher_object *)object;
    return PyLong_FromUnsignedLongLong(self->ticket);
}

static PyObject *get_opening(PyObject *object, void *unused)
{
    (void)unused;
    const publisher_object *self = (const publisher_object *)object;
    return self->has_opening ? report_of(&self->opening) : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"publish", DWPY_KEYWORDS(publisher_publish), METH_VARARGS | METH_KEYWORDS,
     "Publishes the weights in the background and returns a ticket."},
    {"captured", DWPY_KEYWORDS(publisher_captured), METH_VARARGS | METH_KEYWORDS,
     "Whether the weights have been read, and may change again."},
    {"wait", DWPY_KEYWORDS(publisher_wait), METH_VARARGS | METH_KEYWORDS,
     "Waits until the version of a ticket is committed."},
    {"drain", DWPY_KEYWORDS(publisher_drain), METH_VARARGS | METH_KEYWORDS,
     "Waits until folds and anchors are also made."},
    {"idle", DWPY_KEYWORDS(publisher_idle), METH_VARARGS | METH_KEYWORDS,
     "Waits until no version is in progress; False if the time is over first."},
    {"is_current", publisher_is_current, METH_NOARGS,
     "Whether the weights are those of the newest version."},
    {"cancel", publisher_cancel, METH_NOARGS, "Cancels the version in progress."},
    {"close", DWPY_KEYWORDS(publisher_close), METH_VARARGS | METH_KEYWORDS,
     "Waits for the version in progress, and ends."},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"stream_id", get_stream_id, NULL, NULL, NULL},
    {"created", get_created, NULL, "whether opening committed version 0", NULL},
    {"version", get_version, NULL, "the newest version that is committed", NULL},
    {"ticket", get_ticket, NULL, "the last one that publish() gave; 0: none", NULL},
    {"opening", get_opening, NULL, "the report of the version that opening published",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Publishes tensors from where they are."},
    {Py_tp_new, dwpy_publisher_new},
    {Py_tp_dealloc, publisher_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Publisher", sizeof(publisher_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_publisher_add(PyObject *module)
{
    return dwpy_type_add(module, &spec) && dwpy_row_type_add(module, &report_row);
}
