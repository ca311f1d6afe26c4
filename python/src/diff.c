/* diff(). */
#include "delta_type.h"

static dw_delta *diff_now(PyObject *base, PyObject *next, dw_diff_options *options,
                          PyObject *progress)
{
    dwpy_tensors a = {0}, b = {0};
    dw_delta *delta = NULL;
    dw_error err = {0};
    dwpy_hook hook;
    bool good = dwpy_tensors_take(&a, base, options->update_base) &&
                dwpy_tensors_take_beside(&b, next, DWPY_READ, &a);
    if (good && a.n != b.n) {
        dwpy_raise_text(DW_MISMATCH, NULL, "the two sides have not the same tensors");
        good = false;
    }
    if (good && dwpy_hook_begin(&hook, progress, NULL)) {
        options->progress = hook.progress;
        dw_status status =
            dw_delta_diff(&delta, a.tensors, b.tensors, a.n, options, &err);
        if (!dwpy_hook_end(&hook, status, &err)) {
            dw_delta_close(delta);
            delta = NULL;
        }
    }
    dwpy_tensors_release(&b);
    dwpy_tensors_release(&a);
    return delta;
}

PyObject *dwpy_diff(PyObject *self, PyObject *args, PyObject *keywords)
{
    (void)self;
    static char *names[] = {"base",         "new",         "codec",       "trl_layout",
                            "base_version", "new_version", "update_base", "threads",
                            "progress",     NULL};
    static const char *const codecs[] = {"class", "gap", "raw", NULL};
    PyObject *base, *next, *progress = NULL;
    const char *codec = "class";
    dw_diff_options options;
    dw_diff_options_init(&options);
    unsigned long long base_version = 0, new_version = 1;
    int update_base = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$sIKKpIO:diff", names, &base,
                                     &next, &codec, &options.trl_layout, &base_version,
                                     &new_version, &update_base, &options.n_threads,
                                     &progress))
        return NULL;
    const int choice = dwpy_choice(codec, codecs, "codec");
    if (choice < 0)
        return NULL;
    options.codec = (dw_codec)choice;
    options.base_version = base_version;
    options.new_version = new_version;
    options.update_base = update_base != 0;
    dw_delta *delta = diff_now(base, next, &options, progress);
    return delta ? dwpy_delta_wrap(delta, NULL) : NULL;
}
