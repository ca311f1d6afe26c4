/* deltawire.Follower: the steps, and closing. */
#include "follower_type.h"

#include <limits.h>
#include <stddef.h>
#include <unistd.h>

enum { OTHERS_END_MS = 5000 }; /* for calls of other threads, when it closes */

static dwpy_row_type report_row = {
    "FollowReport", "The report of a sync.",
    "start version n_steps n_objects n_bytes n_changed fetch_ms stage_ms apply_ms "
    "n_files_installed n_files_removed n_files_kept times",
    NULL};

static PyObject *row_of(const dw_follow_report *r)
{
    return dwpy_row(
        &report_row,
        Py_BuildValue(
            "NNKKKKKKKKKKN", dwpy_version(r->from), dwpy_version(r->version),
            (unsigned long long)r->n_steps, (unsigned long long)r->n_objects,
            (unsigned long long)r->n_bytes, (unsigned long long)r->n_changed,
            (unsigned long long)r->fetch_ms, (unsigned long long)r->stage_ms,
            (unsigned long long)r->apply_ms, (unsigned long long)r->n_files_installed,
            (unsigned long long)r->n_files_removed, (unsigned long long)r->n_files_kept,
            dwpy_times(&r->times, dw_follow_moment_name)));
}

/* ---- closing ---- */

/* No call is running. A follower from before a fork is left to the process that opened
 * it.
 */
static void end(follower_object *self)
{
    dw_follower *follower = self->follower;
    dwpy_live_remove(&self->live);
    self->guard.is_closed = true;
    self->follower = NULL;
    if (self->name_fd >= 0)
        close(self->name_fd);
    self->name_fd = -1;
    if (follower && !dwpy_guard_is_ours(&self->guard)) {
        self->tensors = (dwpy_tensors){0};
        self->store = NULL;
        return;
    }
    Py_BEGIN_ALLOW_THREADS dw_follower_close(follower);
    Py_END_ALLOW_THREADS dwpy_tensors_release(&self->tensors);
    PyObject *kept = self->store;
    self->store = NULL;
    dwpy_store_leave(kept);
}

void dwpy_follower_end(dwpy_live *live)
{
    follower_object *self =
        (follower_object *)(void *)((char *)live - offsetof(follower_object, live));
    Py_INCREF((PyObject *)self);
    self->guard.is_closing = true;
    if (!dwpy_guard_is_ours(&self->guard)) {
        end(self);
    } else if (dwpy_guard_try(&self->guard, OTHERS_END_MS)) {
        end(self);
        dwpy_guard_leave(&self->guard);
    } else {
        return; /* a call does not end: the follower stays, with everything it uses */
    }
    Py_DECREF((PyObject *)self);
}

static PyObject *follower_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    follower_object *self = (follower_object *)object;
    if (self->guard.is_closed)
        Py_RETURN_NONE;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    self->guard.is_closing = true; /* ends another thread's wait or sync */
    if (!dwpy_guard_enter(&self->guard)) {
        if (!self->guard.is_closed) {
            self->guard.is_closing = false;
            return NULL;
        }
        PyErr_Clear(); /* another thread closed it */
        Py_RETURN_NONE;
    }
    dwpy_follower_stop(self);
    end(self);
    dwpy_guard_leave(&self->guard);
    Py_RETURN_NONE;
}

static void follower_dealloc(PyObject *object)
{
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    end((follower_object *)object);
    PyErr_Restore(error[0], error[1], error[2]);
    dwpy_object_free(object);
}

/* ---- the steps ---- */

void dwpy_follower_note(follower_object *self)
{
    self->version = dw_follower_version(self->follower);
    self->update = dw_follower_update(self->follower);
}

static void leave(follower_object *self, dw_status status, const dw_error *err)
{
    dwpy_follower_note(self);
    dwpy_follower_report_result(self, status, err);
    dwpy_guard_leave(&self->guard);
}

/* Before a call that reads or writes the tensors. */
static bool enter_with_tensors(follower_object *self)
{
    if (!dwpy_guard_enter(&self->guard))
        return false;
    if (dwpy_tensors_check(&self->tensors))
        return true;
    dwpy_guard_leave(&self->guard);
    return false;
}

typedef dw_status (*step_function)(dw_follower *, dw_error *);

static PyObject *do_step(PyObject *object, step_function function)
{
    follower_object *self = (follower_object *)object;
    if (!enter_with_tensors(self))
        return NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = function(self->follower, &err);
    Py_END_ALLOW_THREADS leave(self, status, &err);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

static PyObject *follower_prepare(PyObject *self, PyObject *unused)
{
    (void)unused;
    return do_step(self, dw_follower_prepare);
}

static PyObject *follower_apply(PyObject *self, PyObject *unused)
{
    (void)unused;
    return do_step(self, dw_follower_apply);
}

static PyObject *follower_finish(PyObject *self, PyObject *unused)
{
    (void)unused;
    return do_step(self, dw_follower_finish);
}

static PyObject *follower_poll(PyObject *object, PyObject *unused)
{
    (void)unused;
    follower_object *self = (follower_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    uint64_t newest = DW_NO_VERSION;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_follower_poll(self->follower, &newest, &err);
    Py_END_ALLOW_THREADS if (status == DW_NOT_FOUND)
    {
        newest = DW_NO_VERSION;
        status = DW_OK;
    }
    leave(self, status, &err);
    return status == DW_OK ? dwpy_version(newest) : dwpy_raise(status, &err);
}

static bool is_above(const follower_object *self, uint64_t newest)
{
    const uint64_t at = dw_follower_version(self->follower);
    return newest != DW_NO_VERSION && (at == DW_NO_VERSION || newest > at);
}

static PyObject *follower_wait(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", "max_wait", "progress", NULL};
    follower_object *self = (follower_object *)object;
    unsigned timeout_ms = UINT_MAX, max_wait_ms = 5000;
    PyObject *progress = NULL, *out = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&O&$O:wait", names,
                                     dwpy_timeout_arg, &timeout_ms, dwpy_timeout_arg,
                                     &max_wait_ms, &progress) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    uint64_t newest = DW_NO_VERSION;
    dw_error err = {0};
    dw_status status = DW_CANCELLED;
    dwpy_hook hook;
    if (dwpy_hook_begin(&hook, progress, &self->guard)) {
        dwpy_waiting waiting = {self, &hook};
        const dw_progress beat = {dwpy_follower_beat, &waiting};
        status = dw_follower_wait(self->follower, &newest, timeout_ms, max_wait_ms, &beat,
                                  &err);
        if (status == DW_NOT_FOUND || (status == DW_OK && !is_above(self, newest))) {
            newest = DW_NO_VERSION; /* the time is over */
            status = DW_OK;
        }
        if (dwpy_hook_end(&hook, status, &err))
            out = dwpy_version(newest);
    }
    leave(self, status, &err);
    return out;
}

static bool parse_goal(PyObject *args, PyObject *keywords, uint64_t *goal,
                       PyObject **progress)
{
    static char *names[] = {"goal", "progress", NULL};
    *goal = DW_NEWEST;
    *progress = NULL;
    return PyArg_ParseTupleAndKeywords(args, keywords, "|O&$O", names, dwpy_number_arg,
                                       goal, progress) != 0;
}

static PyObject *follower_stage(PyObject *object, PyObject *args, PyObject *keywords)
{
    follower_object *self = (follower_object *)object;
    uint64_t goal, staged = DW_NO_VERSION;
    PyObject *progress, *out = NULL;
    if (!parse_goal(args, keywords, &goal, &progress) || !enter_with_tensors(self))
        return NULL;
    dw_error err = {0};
    dw_status status = DW_CANCELLED;
    dwpy_hook hook;
    if (dwpy_hook_begin(&hook, progress, &self->guard)) {
        status = dw_follower_stage(self->follower, goal, &staged, &hook.progress, &err);
        if (dwpy_hook_end(&hook, status, &err))
            out = dwpy_version(staged);
    }
    leave(self, status, &err);
    return out;
}

static PyObject *follower_sync(PyObject *object, PyObject *args, PyObject *keywords)
{
    follower_object *self = (follower_object *)object;
    uint64_t goal;
    PyObject *progress, *out = NULL;
    if (!parse_goal(args, keywords, &goal, &progress) || !enter_with_tensors(self))
        return NULL;
    dw_follow_report report = {0};
    dw_error err = {0};
    dw_status status = DW_CANCELLED;
    dwpy_hook hook;
    if (dwpy_hook_begin(&hook, progress, &self->guard)) {
        status = dw_follower_sync(self->follower, goal, &hook.progress, &report, &err);
        if (dwpy_hook_end(&hook, status, &err))
            out = row_of(&report);
    }
    leave(self, status, &err);
    return out;
}

/* The guard is held. The old memory is released once nothing uses it. */
static PyObject *move_now(follower_object *self, PyObject *mapping)
{
    dwpy_tensors tensors;
    if (!dwpy_tensors_take(&tensors, mapping, DWPY_WRITE))
        return NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_follower_move(self->follower, tensors.tensors, tensors.n, &err);
    Py_END_ALLOW_THREADS dwpy_tensors old = tensors;
    if (status == DW_OK) {
        old = self->tensors;
        self->tensors = tensors;
    }
    dwpy_tensors_release(&old);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

static PyObject *follower_move(PyObject *object, PyObject *mapping)
{
    follower_object *self = (follower_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = move_now(self, mapping);
    dwpy_follower_note(self);
    dwpy_guard_leave(&self->guard);
    return out;
}

static PyObject *follower_report(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"status", "message", NULL};
    follower_object *self = (follower_object *)object;
    const char *word, *message = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|z:report", names, &word,
                                     &message) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    dw_error err = {0};
    dw_status status;
    self->report.by_caller = true;
    Py_BEGIN_ALLOW_THREADS status =
        dw_follower_report(self->follower, word, message, &err);
    Py_END_ALLOW_THREADS leave(self, status, &err);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

/* ---- the type ---- */

static PyObject *get_version(PyObject *object, void *unused)
{
    (void)unused;
    follower_object *self = (follower_object *)object;
    return dwpy_guard_check(&self->guard) ? dwpy_version(self->version) : NULL;
}

static PyObject *get_staged(PyObject *object, void *unused)
{
    (void)unused;
    follower_object *self = (follower_object *)object;
    return dwpy_guard_check(&self->guard) ? dwpy_version(self->update.version) : NULL;
}

static PyObject *get_update_state(PyObject *object, void *unused)
{
    (void)unused;
    static const char *const names[] = {
        [DW_UPDATE_FILLED] = "filled",
        [DW_UPDATE_STAGED] = "staged",
        [DW_UPDATE_PREPARED] = "prepared",
        [DW_UPDATE_APPLIED] = "applied",
    };
    const follower_object *self = (follower_object *)object;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    const char *name = names[self->update.state];
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}

static PyObject *get_will_fill(PyObject *object, void *unused)
{
    (void)unused;
    const follower_object *self = (follower_object *)object;
    return dwpy_guard_check(&self->guard) ? PyBool_FromLong(self->update.will_fill)
                                          : NULL;
}

typedef PyObject *(*read_function)(dw_follower *);

/* Waits for calls that may change the values. */
static PyObject *read_with(PyObject *object, read_function function)
{
    follower_object *self = (follower_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = function(self->follower);
    dwpy_guard_leave(&self->guard);
    return out;
}

static PyObject *read_path(const char *path)
{
    return path ? PyUnicode_DecodeFSDefault(path) : Py_NewRef(Py_None);
}

static PyObject *read_staged_path(dw_follower *follower)
{
    return read_path(dw_follower_update(follower).patch);
}

static PyObject *read_dir(dw_follower *follower)
{
    return read_path(dw_follower_dir(follower));
}

static PyObject *read_state(dw_follower *follower)
{
    return dw_follower_version(follower) == DW_NO_VERSION
               ? Py_NewRef(Py_None)
               : dwpy_digest(dw_follower_state(follower));
}

static PyObject *read_totals(dw_follower *follower)
{
    dw_follow_report totals;
    dw_follower_totals(follower, &totals);
    return row_of(&totals);
}

static PyObject *read_files_kept(dw_follower *follower)
{
    size_t n;
    const char *const *paths = dw_follower_files_kept(follower, &n);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *path = read_path(paths[i]);
        if (!path || PyList_Append(list, path) < 0)
            Py_CLEAR(list);
        Py_XDECREF(path);
    }
    return list;
}

/* CLOSURE is the name of the attribute. */
static const read_function readers[] = {read_staged_path, read_dir, read_state,
                                        read_totals, read_files_kept};

static PyObject *get_any(PyObject *object, void *closure)
{
    return read_with(object, *(const read_function *)closure);
}

static PyMethodDef methods[] = {
    {"poll", follower_poll, METH_NOARGS, "The newest version of the stream."},
    {"wait", DWPY_KEYWORDS(follower_wait), METH_VARARGS | METH_KEYWORDS,
     "Waits until there is a version above the weights'; None if the time is over."},
    {"stage", DWPY_KEYWORDS(follower_stage), METH_VARARGS | METH_KEYWORDS,
     "Fetches and proves the next step; the weights stay as they are."},
    {"prepare", follower_prepare, METH_NOARGS, "Makes the staged step durable."},
    {"apply", follower_apply, METH_NOARGS,
     "Stores the new values. An engine must pause for this."},
    {"finish", follower_finish, METH_NOARGS, "Syncs and checks what was applied."},
    {"sync", DWPY_KEYWORDS(follower_sync), METH_VARARGS | METH_KEYWORDS,
     "Brings the weights to a version, step by step."},
    {"move", follower_move, METH_O,
     "Goes on with other memory that holds the same weights."},
    {"report", DWPY_KEYWORDS(follower_report), METH_VARARGS | METH_KEYWORDS,
     "Reports a status to the stream."},
    {"close", follower_close, METH_NOARGS, "Ends calls of other threads, too."},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"version", get_version, NULL, "the version of the weights", NULL},
    {"staged_path", get_any, NULL, "the staged list, as a file", (void *)&readers[0]},
    {"dir", get_any, NULL, "the checkpoint directory of the version",
     (void *)&readers[1]},
    {"staged", get_staged, NULL, "the version that is staged", NULL},
    {"update_state", get_update_state, NULL, "how far the staged version is", NULL},
    {"will_fill", get_will_fill, NULL, "whether the next stage writes to empty memory",
     NULL},
    {"state", get_any, NULL, "the digest of the version", (void *)&readers[2]},
    {"totals", get_any, NULL, "totals since it was opened", (void *)&readers[3]},
    {"files_kept", get_any, NULL, "the user's files in place of companion files",
     (void *)&readers[4]},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Brings weights to versions of a stream."},
    {Py_tp_new, dwpy_follower_new},
    {Py_tp_dealloc, follower_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Follower", sizeof(follower_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_follower_add(PyObject *module)
{
    return dwpy_type_add(module, &spec) && dwpy_row_type_add(module, &report_row);
}
