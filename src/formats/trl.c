/* TRL's files: an anchor with the whole model, or a delta (codec/trl_delta.h).
 *
 * A step without changes becomes a delta without tensors. TRL's own trainer counts such a
 * step but writes no file, so a reader of the bucket cannot distinguish it from a lost
 * upload. TRL's readers accept a file without tensors, and the numbers have no gap.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "codec/trl_delta.h"
#include "formats/formats_inside.h"
#include "store/store.h"
#include "tensor/dtype.h"

#define ANCHORS "anchors/step_"
#define DELTAS  "deltas/step_"
#define END     ".safetensors"

static void write_key(char out[DW_KEY_TEXT], const dw_foreign_version *v)
{
    dw_format_key(out, v->is_anchor ? ANCHORS : DELTAS, v->version, END);
}

static bool parse(const char *key, dw_foreign_version *out)
{
    out->is_anchor = dw_format_parse(key, ANCHORS, END, &out->version);
    return out->is_anchor || dw_format_parse(key, DELTAS, END, &out->version);
}

/* ---- headers ---- */

static const char *text_of(const dw_json *object, const char *key)
{
    return dw_json_string(dw_json_get(object, key));
}

static dw_status check_delta(const dw_json *meta, const char *where, dw_error *err)
{
    const char *format = text_of(meta, "format"), *sparse = text_of(meta, "sparse");
    const char *encoding = text_of(meta, "encoding");
    if (!format || strcmp(format, DW_TRL_FORMAT) != 0 || !sparse ||
        strcmp(sparse, "True") != 0)
        return dw_fail(err, DW_CORRUPT, where,
                       "this is no delta of TRL's: its metadata says neither '%s' nor "
                       "sparse",
                       DW_TRL_FORMAT);
    if (encoding && strcmp(encoding, "raw") != 0 && strcmp(encoding, "gap_delta") != 0)
        return dw_fail(err, DW_UNSUPPORTED, where,
                       "TRL's encoding '%.40s' is not supported; 'raw' and 'gap_delta' "
                       "are",
                       encoding);
    return DW_OK;
}

static dw_status check_metadata(const dw_foreign_version *v, const dw_json *meta,
                                const char *where, dw_error *err)
{
    const char *named = text_of(meta, "model_version");
    uint64_t version;
    if (named && (!dw_parse_number(named, 10, &version) || version != v->version))
        return dw_fail(err, DW_CORRUPT, where,
                       "the file is named version %" PRIu64 ", but says that it is %.40s",
                       v->version, named);
    if (!v->is_anchor)
        return check_delta(meta, where, err);
    const char *sparse = text_of(meta, "sparse");
    return sparse && strcmp(sparse, "True") == 0
               ? dw_fail(err, DW_CORRUPT, where,
                         "it is a delta, but has the name of an anchor")
               : DW_OK;
}

dw_status dw_trl_head_parse(dw_foreign_facts *out, const dw_foreign_version *v,
                            const void *head, size_t n_head, const char *where,
                            dw_error *err)
{
    dw_reader reader = dw_reader_of(head, n_head);
    uint64_t n = dw_read_u64(&reader);
    const uint8_t *header = dw_read_bytes(&reader, n);
    if (!header)
        return dw_fail(err, DW_CORRUPT, where,
                       "the header of the safetensors file is cut off");
    dw_json *root;
    dw_status status = dw_json_read(&root, header, (size_t)n, "header", where, err);
    if (status != DW_OK)
        return status;
    const dw_json *meta = dw_json_get(root, "__metadata__");
    out->n_tensors = dw_json_size(root) - (meta != NULL);
    out->is_whole = v->is_anchor;
    status = check_metadata(v, meta, where, err);
    dw_json_free(root);
    return status;
}

/* The first bytes, with all of the header. */
static dw_status fetch_head(dw_writer *out, const dw_foreign *f, const char *key,
                            dw_error *err)
{
    dw_status status = dw_foreign_fetch_head(out, f, key, DW_FORMAT_HEAD_BYTES, err);
    const uint64_t n = status == DW_OK && out->n_bytes >= 8 ? dw_load64(out->bytes) : 0;
    if (status != DW_OK || n > DW_SAFETENSORS_MAX_HEADER || 8 + n <= out->n_bytes)
        return status; /* complete, or the length is not credible */
    dw_writer_release(out);
    *out = (dw_writer){0};
    return dw_foreign_fetch_head(out, f, key, 8 + (size_t)n, err);
}

static dw_status look_at_file(const dw_foreign *f, const dw_foreign_version *v,
                              dw_foreign_facts *out, dw_error *err)
{
    char key[DW_KEY_TEXT], where[DW_STORE_WHERE];
    dw_writer head = {0};
    write_key(key, v);
    dw_store_where(f->store, key, where, sizeof where);
    dw_status status = fetch_head(&head, f, key, err);
    if (status == DW_OK)
        status = dw_trl_head_parse(out, v, head.bytes, head.n_bytes, where, err);
    if (status == DW_OK)
        status = dw_sha256_of(out->mark, head.bytes, head.n_bytes, err);
    dw_writer_release(&head);
    return status;
}

/* How many tensors a whole anchor has: as many as the model, or as the oldest anchor. */
static dw_status count_whole(const dw_foreign *f, size_t *n, dw_error *err)
{
    dw_foreign_facts oldest = {0};
    dw_status status = DW_OK;
    *n = f->n_tensors;
    for (size_t i = 0; status == DW_OK && *n == 0 && i < f->n_versions; i++)
        if (f->versions[i].is_anchor) {
            status = look_at_file(f, &f->versions[i], &oldest, err);
            *n = oldest.n_tensors;
        }
    return status;
}

static dw_status look(dw_foreign *f, const dw_foreign_version *v, dw_foreign_facts *out,
                      dw_error *err)
{
    size_t n_whole;
    dw_status status = look_at_file(f, v, out, err);
    if (status == DW_OK && v->is_anchor) {
        status = count_whole(f, &n_whole, err);
        out->is_whole = status == DW_OK && out->n_tensors >= n_whole;
    }
    /* the version before the first is not in the store, but has a number */
    out->base = v > f->versions ? v[-1].version : v->version - 1;
    return status;
}

/* ---- reading ---- */

static dw_status read_anchor(dw_foreign *f, const dw_foreign_file *file, dw_error *err)
{
    dw_status status =
        dw_foreign_learn(f, file->file.tensors, file->file.n_tensors, file->where, err);
    if (status == DW_OK)
        status = dw_foreign_check(f, &file->file, file->where, err);
    if (status != DW_OK)
        return status;
    dw_foreign_change(f);
    return dw_foreign_store(f, &file->file, err);
}

static dw_status read_delta(dw_foreign *f, const dw_foreign_file *file, dw_error *err)
{
    dw_delta *delta;
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = f->options.n_threads;
    dw_status status = dw_delta_open_bytes(&delta, file->blob.bytes, file->blob.n_bytes,
                                           file->where, err);
    if (status != DW_OK)
        return status;
    dw_foreign_change(f);
    status = dw_delta_apply(delta, f->model.tensors, f->n_tensors, &options, err);
    dw_delta_close(delta);
    return status;
}

static dw_status read_version(dw_foreign *f, const dw_foreign_version *v,
                              const dw_progress *progress, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_foreign_file file;
    write_key(key, v);
    dw_status status = dw_foreign_fetch(&file, f, key, progress, err);
    if (status == DW_OK)
        status = v->is_anchor ? read_anchor(f, &file, err) : read_delta(f, &file, err);
    dw_foreign_file_release(&file);
    return status;
}

/* ---- writing ---- */

/* TRL's own rule: 1, and every multiple. */
static bool is_due(const dw_foreign_options *o, uint64_t version)
{
    const unsigned every = o->whole_every ? o->whole_every : o->trl_layout == 1 ? 10 : 20;
    return version == 1 || version % every == 0;
}

static void write_names(dw_writer *w, const dw_foreign_job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        dw_write_text(w, i ? ", " : "[");
        dw_write_json_string(w, job->next[i].name);
    }
    dw_write_text(w, job->n ? "]" : "[]");
    dw_write_u8(w, 0);
}

/* All metadata are strings, formatted as by Python's str(). */
static dw_status put_anchor(dw_foreign *f, const dw_foreign_job *job, const char *key,
                            dw_foreign_report *report, dw_error *err)
{
    char version[24], n_params[24], n_elems[24];
    uint64_t total = 0;
    for (size_t i = 0; i < job->n; i++)
        total += dw_tensor_units(&job->next[i]);
    snprintf(version, sizeof version, "%" PRIu64, job->version);
    snprintf(n_params, sizeof n_params, "%zu", job->n);
    snprintf(n_elems, sizeof n_elems, "%" PRIu64, total);
    dw_writer names = {0};
    write_names(&names, job);
    if (names.failed) {
        dw_writer_release(&names);
        return dw_fail_memory(err, key);
    }
    const bool gaps = f->options.trl_codec == DW_CODEC_GAP;
    const dw_pair metadata[] = {
        {"format", DW_TRL_FORMAT},
        {"version", "1"},
        {"sparse", "False"},
        {"model_version", version},
        {"num_changed_params", n_params},
        f->options.trl_layout == 1
            ? (dw_pair){"changed_params", (const char *)names.bytes}
            : (dw_pair){"encoding", gaps ? "gap_delta" : "raw"},
        {"total_changed_elements", n_elems},
        {"total_elements", n_elems},
        {"sparsity", "0.0"},
    };
    dw_status status =
        dw_foreign_put_file(f, key, job->next, job->n, metadata,
                            sizeof metadata / sizeof metadata[0], job, report, err);
    dw_writer_release(&names);
    return status;
}

static dw_status put_delta(dw_foreign *f, const dw_foreign_job *job, const char *key,
                           dw_foreign_report *report, dw_error *err)
{
    dw_delta *delta;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = f->options.trl_codec;
    options.trl_layout = f->options.trl_layout;
    options.n_threads = f->options.n_threads;
    options.base_version = job->base_version;
    options.new_version = job->version;
    dw_status status = dw_delta_diff(&delta, job->base, job->next, job->n, &options, err);
    if (status != DW_OK)
        return status;
    const dw_source source = {
        .n_bytes = delta->info.n_bytes, .read = dw_delta_read_at, .context = delta};
    status = dw_foreign_put(f, key, &source, job, report, err);
    dw_delta_close(delta);
    return status;
}

static dw_status write_version(dw_foreign *f, const dw_foreign_job *job,
                               dw_foreign_report *report, dw_error *err)
{
    char key[DW_KEY_TEXT];
    for (size_t i = 0; i < job->n; i++)
        if (job->next[i].dtype != DW_BF16)
            return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, job->next[i].name,
                                  "TRL's files hold only BF16, and this is %s: convert "
                                  "it, or take slime's format",
                                  dw_dtype_name(job->next[i].dtype));
    write_key(key, &(dw_foreign_version){job->version, job->is_whole});
    return job->is_whole ? put_anchor(f, job, key, report, err)
                         : put_delta(f, job, key, report, err);
}

const dw_format dw_format_trl = {
    .name = "trl",
    .prefixes = {ANCHORS, DELTAS},
    .parse = parse,
    .look = look,
    .read = read_version,
    .is_due = is_due,
    .write = write_version,
};
