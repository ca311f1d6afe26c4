/* The arguments of deltawire.Publisher. */
#include <limits.h>
#include <stdio.h>

#include "publisher_type.h"

/* Arguments for dw_publish_options. New references are released at the end of the call.
 */
typedef struct arguments {
    PyObject *store, *tensors, *fork, *trust, *progress;
    PyObject *base, *baseline_dir, *spool_dir, *sign_key; /* new: bytes */
    PyObject *step;                                       /* new: a string */
    PyObject *as_bf16, *shards, *files, *agree;
    const char *when_busy, *base_name, *notes, *stream, *baseline;
    unsigned rank, n_ranks;
    int single_writer, new_key, provenance, publish_changed, take_over;
    unsigned exit_ms;
    unsigned long long max_object_bytes, max_anchor_bytes;
    dw_publish_options options;
    dwpy_trust keys;
    dwpy_quantize quantize;
    dwpy_files companions;
    bool *masters;  /* PyMem_Free */
    dw_shard *list; /* PyMem_Free */
} arguments;

static bool parse(arguments *a, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"store",
                            "tensors",
                            "when_busy",
                            "max_wait",
                            "base",
                            "base_name",
                            "fork",
                            "fork_version",
                            "baseline_dir",
                            "spool_dir",
                            "fold_every",
                            "anchor_every",
                            "anchor_factor",
                            "sign_key",
                            "trust",
                            "stream",
                            "new_key",
                            "single_writer",
                            "max_object_bytes",
                            "max_anchor_bytes",
                            "threads",
                            "step",
                            "notes",
                            "exit_timeout",
                            "progress",
                            "as_bf16",
                            "shards",
                            "rank",
                            "n_ranks",
                            "job",
                            "rank_timeout",
                            "sweep_every",
                            "provenance",
                            "publish_changed",
                            "quantize",
                            "quantize_keep",
                            "quantize_also",
                            "quantize_from_f32",
                            "files",
                            "baseline",
                            "agree",
                            "keep",
                            "start",
                            "take_over",
                            NULL};
    dw_publish_options *o = &a->options;
    return PyArg_ParseTupleAndKeywords(
               args, keywords,
               "OO|$sO&O&zOO&O&O&IIdO&OzppKKIO&zO&OOOIIzO&IppzOOpOsOO&zp:Publisher",
               names, &a->store, &a->tensors, &a->when_busy, dwpy_timeout_arg,
               &o->max_wait_ms, dwpy_path_arg, &a->base, &a->base_name, &a->fork,
               dwpy_number_arg, &o->fork_version, dwpy_path_arg, &a->baseline_dir,
               dwpy_path_arg, &a->spool_dir, &o->fold_every, &o->anchor_every,
               &o->anchor_factor, dwpy_path_arg, &a->sign_key, &a->trust, &a->stream,
               &a->new_key, &a->single_writer, &a->max_object_bytes, &a->max_anchor_bytes,
               &o->n_threads, dwpy_step_arg, &a->step, &a->notes, dwpy_timeout_arg,
               &a->exit_ms, &a->progress, &a->as_bf16, &a->shards, &a->rank, &a->n_ranks,
               &o->job, dwpy_timeout_arg, &o->rank_timeout_ms, &o->sweep_every,
               &a->provenance, &a->publish_changed, &a->quantize.scheme,
               &a->quantize.keep, &a->quantize.also, &a->quantize.from_f32, &a->files,
               &a->baseline, &a->agree, dwpy_number_arg, &o->n_keep, &o->start,
               &a->take_over) != 0;
}

/* The caller's function, on the thread that called the library. Its exception becomes the
 * error. */
static dw_status call_agree(void *context, uint32_t *maxima, size_t n, dw_error *err)
{
    const publisher_object *self = context;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *view = PyMemoryView_FromMemory(
        (char *)maxima, (Py_ssize_t)(n * sizeof *maxima), PyBUF_WRITE);
    PyObject *result =
        view ? PyObject_CallFunctionObjArgs(self->agree, view, NULL) : NULL;
    const bool is_good = result != NULL;
    Py_XDECREF(result);
    if (!is_good) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        PyObject *text = value ? PyObject_Str(value) : NULL;
        const char *line = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
        err->code = DW_UNAVAILABLE;
        snprintf(err->text, sizeof err->text, "%s", line ? line : "an exception");
        PyErr_Clear();
        if (type && PyErr_GivenExceptionMatches(type, PyExc_KeyboardInterrupt))
            PyErr_SetInterrupt(); /* it is raised when the call returns */
        Py_XDECREF(text);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    }
    Py_XDECREF(view);
    PyGILState_Release(state);
    return is_good ? DW_OK : DW_UNAVAILABLE;
}

/* A line for people goes to the package's log. */
static void warn(void *context, const char *line)
{
    (void)context;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *package = PyImport_ImportModule("logging"), *result = NULL;
    PyObject *logger =
        package ? PyObject_CallMethod(package, "getLogger", "s", "deltawire") : NULL;
    if (logger)
        result = PyObject_CallMethod(logger, "warning", "s", line);
    if (!result)
        PyErr_WriteUnraisable(NULL);
    Py_XDECREF(result);
    Py_XDECREF(logger);
    Py_XDECREF(package);
    PyGILState_Release(state);
}

static bool to_ranks(arguments *a, publisher_object *self)
{
    if (a->agree && a->agree != Py_None) {
        if (!PyCallable_Check(a->agree)) {
            PyErr_SetString(PyExc_TypeError, "agree is not callable");
            return false;
        }
        self->agree = Py_NewRef(a->agree);
        a->options.agree = call_agree;
        a->options.agree_context = self;
    }
    a->options.rank = a->rank;
    a->options.n_ranks = a->n_ranks;
    if (a->shards == Py_None)
        a->shards = NULL;
    if ((a->shards || a->n_ranks > 1) && a->options.when_busy != DW_BUSY_WAIT) {
        PyErr_SetString(PyExc_ValueError,
                        "when_busy: ranks that cancel apart would never meet again, so a "
                        "sharded publish always waits");
        return false;
    }
    return true;
}

static bool to_options(arguments *a, publisher_object *self)
{
    static const char *const modes[] = {"wait", "fold", NULL};
    dw_publish_options *o = &a->options;
    static const char *const memories[] = {"device", "host", NULL};
    const int mode = dwpy_choice(a->when_busy, modes, "when_busy");
    const int memory = mode < 0 ? -1 : dwpy_choice(a->baseline, memories, "baseline");
    if (memory < 0 || !dwpy_trust_read(&a->keys, a->trust))
        return false;
    o->when_busy = (dw_when_busy)mode;
    o->baseline_memory = (dw_baseline_memory)memory;
    o->trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])a->keys.keys, a->keys.n,
                          a->stream};
    o->base = dwpy_path_text(a->base);
    o->base_name = a->base_name ? a->base_name : o->base;
    o->first = o->base_name ? DW_FIRST_BASE : DW_FIRST_ANCHOR;
    o->baseline_dir = dwpy_path_text(a->baseline_dir);
    o->spool_dir = dwpy_path_text(a->spool_dir);
    o->single_writer = a->single_writer != 0;
    o->new_key = a->new_key != 0;
    o->no_provenance = a->provenance == 0;
    o->publish_changed = a->publish_changed != 0;
    o->take_over = a->take_over != 0;
    o->notice = warn;
    o->max_object_bytes = a->max_object_bytes;
    o->max_anchor_bytes = a->max_anchor_bytes;
    o->first_step = dwpy_text(a->step);
    o->first_notes = a->notes;
    self->exit_ms = a->exit_ms;
    if (!to_ranks(a, self) || !dwpy_quantize_read(&a->quantize) ||
        !dwpy_files_read(&a->companions, a->files))
        return false;
    o->files = a->companions.files;
    o->n_files = a->companions.n;
    o->has_files = a->companions.is_given;
    if (a->quantize.scheme)
        o->quantize = &a->quantize.options;
    if (a->fork && a->fork != Py_None) {
        o->first = DW_FIRST_FORK;
        o->fork_store = dwpy_store_use(a->fork, &self->fork_store);
        if (!o->fork_store)
            return false;
    }
    if (a->sign_key) {
        dw_error err = {0};
        dw_status status =
            dw_sign_key_open(&self->sign_key, dwpy_path_text(a->sign_key), &err);
        if (status != DW_OK) {
            dwpy_raise(status, &err);
            return false;
        }
        o->sign_key = self->sign_key;
    }
    return true;
}

static bool open_now(publisher_object *self, arguments *a)
{
    dw_store *store = dwpy_store_use(a->store, &self->store);
    if (!store ||
        !dwpy_tensors_take(&self->tensors, a->tensors,
                           a->shards ? DWPY_SHAPE : DWPY_READ) ||
        !dwpy_publisher_number(self) ||
        !dwpy_publisher_flags(self, a->as_bf16, "as_bf16", &a->masters) ||
        (a->shards &&
         !dwpy_publisher_shards(self, a->shards, &a->list, &a->options.n_shards)))
        return false;
    a->options.as_bf16 = a->masters;
    a->options.shards = a->list;
    dwpy_hook hook;
    dw_error err = {0};
    if (!dwpy_hook_begin(&hook, a->progress, NULL))
        return false;
    a->options.progress = hook.progress;
    dw_status status = dw_publisher_open(&self->publisher, store, self->tensors.tensors,
                                         self->tensors.n, &a->options, &err);
    self->has_opening =
        status == DW_OK &&
        dw_publisher_wait(self->publisher, 1, 0, NULL, &self->opening, NULL) == DW_OK;
    return dwpy_hook_end(&hook, status, &err);
}

PyObject *dwpy_publisher_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    arguments a = {.when_busy = "wait",
                   .baseline = "device",
                   .n_ranks = 1,
                   .exit_ms = 30000,
                   .provenance = 1,
                   .publish_changed = 1};
    dw_publish_options_init(&a.options);
    if (!parse(&a, args, keywords))
        return NULL;
    publisher_object *self = (publisher_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        dwpy_guard_init(&self->guard);
        pthread_rwlock_init(&self->alive, NULL);
        if (to_options(&a, self) && open_now(self, &a))
            dwpy_live_add(&self->live, dwpy_publisher_end);
        else
            Py_CLEAR(self);
    }
    dwpy_trust_release(&a.keys);
    dwpy_quantize_release(&a.quantize);
    dwpy_files_release(&a.companions);
    PyMem_Free(a.masters);
    PyMem_Free(a.list);
    Py_XDECREF(a.base);
    Py_XDECREF(a.baseline_dir);
    Py_XDECREF(a.spool_dir);
    Py_XDECREF(a.sign_key);
    Py_XDECREF(a.step);
    return (PyObject *)self;
}
