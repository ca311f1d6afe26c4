#include "stream/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/record_files.h"
#include "stream/transfer.h"
#include "tensor/tensor_list.h"

#define WHERE_BYTES DW_ERROR_WHERE_SIZE

/* ---- one record ---- */

/* Reads KEY whole; WHERE takes its name for errors. */
static dw_status read_record(dw_stream *s, const char *key, dw_writer *bytes,
                             char where[WHERE_BYTES], dw_error *err)
{
    dw_store_where(s->store, key, where, WHERE_BYTES);
    return dw_record_fetch(bytes, s->store, key, err);
}

/* The same for a kind of record that must be signed by a trusted key, if there are any.
 * Any other record is refused here, before it is parsed. */
static dw_status read_signed(dw_stream *s, const char *key, dw_writer *bytes,
                             char where[WHERE_BYTES], dw_error *err)
{
    dw_status status = read_record(s, key, bytes, where, err);
    return status == DW_OK
               ? dw_stream_check_signer(s, bytes->bytes, bytes->n_bytes, where, err)
               : status;
}

static dw_status check_stream(const dw_stream *s, const char *id, const char *where,
                              dw_error *err)
{
    if (strcmp(id, s->record.stream) == 0)
        return DW_OK;
    return dw_fail(err, DW_MISMATCH, where,
                   "the record is of stream %s, but this is stream %s: two streams were "
                   "mixed in one place. Give each a prefix of its own",
                   id, s->record.stream);
}

dw_status dw_stream_check_signer(const dw_stream *s, const void *bytes, size_t n_bytes,
                                 const char *where, dw_error *err)
{
    dw_record_seal seal = {0};
    seal.is_signed = dw_record_signer(seal.key, bytes, n_bytes);
    return dw_stream_check_seal(s, &seal, where, err);
}

dw_status dw_stream_check_seal(const dw_stream *s, const dw_record_seal *seal,
                               const char *where, dw_error *err)
{
    if (s->n_trust == 0)
        return DW_OK;
    if (!seal->is_signed)
        return dw_fail(err, DW_UNTRUSTED, where,
                       "the record is not signed, but a signature by a trusted key was "
                       "asked for");
    for (size_t i = 0; i < s->n_trust; i++)
        if (memcmp(s->trust[i], seal->key, DW_PUBLIC_KEY_BYTES) == 0)
            return DW_OK;
    char text[DW_PUBLIC_KEY_TEXT];
    dw_public_key_format(text, seal->key);
    return dw_fail(err, DW_UNTRUSTED, where,
                   "the record is signed by %s, which is not among the trusted keys",
                   text);
}

/* An object belongs to one record and carries its version and kind in its name: the
 * collector relies on it. */
static dw_status check_names(const dw_objects *objects, uint64_t version,
                             bool of_shortcut, const char *where, dw_error *err)
{
    for (size_t i = 0; i < objects->n; i++) {
        uint64_t named;
        bool is_of_shortcut;
        const char *key = objects->items[i].key;
        if (!dw_key_is_object(key, &named, &is_of_shortcut) || named != version ||
            is_of_shortcut != of_shortcut)
            return dw_fail(err, DW_CORRUPT, where, "'%s' is another record's object",
                           key);
    }
    return DW_OK;
}

/* A companion file was stored by this version or one before it: the collector relies on
 * it. */
static dw_status check_files(const dw_file_list *files, uint64_t version,
                             const char *where, dw_error *err)
{
    for (size_t i = 0; i < files->n; i++) {
        uint64_t named;
        if (!dw_key_is_file(files->items[i].key, &named) || named > version)
            return dw_fail(err, DW_CORRUPT, where, "'%s' is of a later version",
                           files->items[i].key);
    }
    return DW_OK;
}

/* The error for a damaged newest commit, after which no version can come; it names the
 * next step. */
static dw_status explain_damaged_head(uint64_t head, dw_error *err)
{
    if (!err)
        return DW_CORRUPT;
    const dw_error fault = *err;
    return dw_fail(err, DW_CORRUPT, fault.where,
                   "%.400s. It is the newest commit. Remove it and restore it from a "
                   "copy with `deltawire cp`. If there is no copy, remove it "
                   "and " DW_KEY_LATEST ": version %" PRIu64 " is then published again, "
                   "and whoever used it must start with an empty directory",
                   fault.text, head);
}

dw_status dw_stream_read_commit(dw_stream *s, uint64_t version, dw_commit_record *out,
                                dw_error *err)
{
    char key[DW_KEY_TEXT], where[WHERE_BYTES];
    dw_key_commit(key, version);
    dw_writer bytes;
    dw_status status = read_signed(s, key, &bytes, where, err);
    if (status == DW_OK)
        status = dw_commit_record_parse(out, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status == DW_CORRUPT && version == s->head)
        return explain_damaged_head(version, err);
    if (status != DW_OK)
        return status;
    status = check_stream(s, out->stream, where, err);
    if (status == DW_OK && out->version != version)
        status = dw_fail(err, DW_UNTRUSTED, where,
                         "the record says that it is version %" PRIu64
                         ": somebody copied it here",
                         out->version);
    if (status == DW_OK)
        status = check_names(&out->objects, version, false, where, err);
    if (status == DW_OK)
        status = check_files(&out->files, version, where, err);
    if (status == DW_OK)
        status = dw_objects_check(&out->objects, s->record.tensors, s->record.n_tensors,
                                  out->content == DW_CONTENT_ANCHOR, where, err);
    if (status != DW_OK)
        dw_commit_record_release(out);
    return status;
}

dw_status dw_stream_read_shortcut(dw_stream *s, uint64_t version, uint64_t from,
                                  dw_shortcut_record *out, dw_error *err)
{
    char key[DW_KEY_TEXT], where[WHERE_BYTES];
    dw_key_shortcut(key, version, from);
    dw_writer bytes;
    dw_status status = read_signed(s, key, &bytes, where, err);
    if (status == DW_OK)
        status = dw_shortcut_record_parse(out, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status != DW_OK)
        return status;
    status = check_stream(s, out->stream, where, err);
    if (status == DW_OK && (out->version != version || out->from != from))
        status = dw_fail(err, DW_UNTRUSTED, where,
                         "the record is for other versions than its name says: somebody "
                         "copied it here");
    if (status == DW_OK)
        status = check_names(&out->objects, version, true, where, err);
    if (status == DW_OK)
        status = dw_objects_check(&out->objects, s->record.tensors, s->record.n_tensors,
                                  from == DW_NO_VERSION, where, err);
    if (status != DW_OK)
        dw_shortcut_record_release(out);
    return status;
}

dw_status dw_stream_read_epoch(dw_stream *s, uint64_t epoch, dw_epoch_record *out,
                               dw_error *err)
{
    char key[DW_KEY_TEXT], where[WHERE_BYTES];
    dw_key_epoch(key, epoch);
    dw_writer bytes;
    dw_status status = read_record(s, key, &bytes, where, err);
    if (status == DW_OK)
        status = dw_epoch_record_parse(out, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status != DW_OK)
        return status;
    status = check_stream(s, out->stream, where, err);
    if (status == DW_OK && out->epoch != epoch)
        status = dw_fail(err, DW_UNTRUSTED, where, "the record is for epoch %" PRIu64,
                         out->epoch);
    if (status != DW_OK)
        dw_epoch_record_release(out);
    return status;
}

bool dw_stream_stops(dw_status status)
{
    return status == DW_NO_MEMORY || status == DW_CANCELLED || status == DW_UNAVAILABLE ||
           status == DW_DENIED;
}

bool dw_stream_passes_over(dw_status status)
{
    return status == DW_NOT_FOUND || status == DW_CORRUPT || status == DW_UNTRUSTED ||
           status == DW_UNSUPPORTED || status == DW_MISMATCH;
}

dw_status dw_stream_read_latest(dw_stream *s, dw_latest_record *out, dw_error *err)
{
    char where[WHERE_BYTES];
    dw_writer bytes;
    *out = (dw_latest_record){.version = DW_NO_VERSION};
    dw_status status = read_record(s, DW_KEY_LATEST, &bytes, where, err);
    dw_latest_record latest;
    if (status == DW_OK && dw_latest_record_parse(&latest, bytes.bytes, bytes.n_bytes,
                                                  where, NULL) == DW_OK) {
        if (strcmp(latest.stream, s->record.stream) == 0)
            *out = latest;
        else
            dw_latest_record_release(&latest);
    }
    dw_writer_release(&bytes);
    /* without a hint the search goes on, but not without the store */
    return dw_stream_stops(status) ? status : DW_OK;
}

dw_status dw_stream_floor(dw_stream *s, uint64_t *floor, dw_error *err)
{
    char where[WHERE_BYTES];
    dw_writer bytes;
    *floor = 0;
    dw_status status = read_record(s, DW_KEY_FLOOR, &bytes, where, err);
    dw_floor_record record;
    if (status == DW_OK)
        status = dw_floor_record_parse(&record, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status == DW_OK)
        status = check_stream(s, record.stream, where, err);
    if (status == DW_OK)
        *floor = record.version;
    return dw_stream_stops(status) ? status : DW_OK; /* a hint too */
}

dw_status dw_stream_check_child(const dw_stream *s, const dw_commit_record *parent,
                                const dw_commit_record *child, dw_error *err)
{
    char key[DW_KEY_TEXT], where[WHERE_BYTES];
    dw_key_commit(key, child->version);
    dw_store_where(s->store, key, where, sizeof where);
    if (memcmp(child->parent_sha256, parent->seal.sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(err, DW_UNTRUSTED, where,
                       "version %" PRIu64 " was not made after the version %" PRIu64
                       " that is here: history was rewritten, or two streams were mixed",
                       child->version, parent->version);
    if (child->epoch < parent->epoch ||
        (child->epoch == parent->epoch && strcmp(child->writer, parent->writer) != 0))
        return dw_fail(err, DW_UNTRUSTED, where,
                       "version %" PRIu64 " was made by a writer that had been replaced "
                       "(epoch %" PRIu64 " after %" PRIu64 ")",
                       child->version, child->epoch, parent->epoch);
    return DW_OK;
}

bool dw_shortcut_agrees(const dw_shortcut_record *shortcut,
                        const dw_commit_record *commit)
{
    return shortcut->state == commit->state &&
           memcmp(shortcut->commit_sha256, commit->seal.sha256, DW_SHA256_BYTES) == 0;
}

/* ---- opening ---- */

static dw_status make_handle(dw_stream **out, dw_store *store, const dw_trust *trust,
                             dw_error *err)
{
    dw_stream *s = dw_alloc_zeroed(1, sizeof *s);
    if (!s)
        return dw_fail_memory(err, dw_store_url(store));
    s->store = store;
    s->head = s->evidence = s->lost = DW_NO_VERSION;
    s->n_trust = trust ? trust->n_keys : 0;
    s->trust = dw_alloc_array(s->n_trust, sizeof *s->trust);
    if (!s->trust) {
        dw_free(s);
        return dw_fail_memory(err, dw_store_url(store));
    }
    if (s->n_trust > 0)
        memcpy(s->trust, trust->keys, s->n_trust * sizeof *s->trust);
    *out = s;
    return DW_OK;
}

static dw_status check_id(const char *id, dw_error *err)
{
    uint8_t bytes[(DW_ID_TEXT - 1) / 2];
    return dw_hex_decode(bytes, sizeof bytes, id)
               ? DW_OK
               : dw_fail(err, DW_INVALID, NULL,
                         "'%.64s' is no id of a stream: that is 32 digits of 0-9 and "
                         "a-f, which `deltawire status` shows",
                         id);
}

dw_status dw_stream_open(dw_stream **out, dw_store *store, const dw_trust *trust,
                         dw_error *err)
{
    *out = NULL;
    dw_stream *s = NULL;
    dw_status status = make_handle(&s, store, trust, err);
    if (status != DW_OK)
        return status;
    if (trust && trust->stream)
        status = check_id(trust->stream, err);
    if (status != DW_OK) {
        dw_stream_close(s);
        return status;
    }
    char where[WHERE_BYTES];
    dw_writer bytes;
    status = read_signed(s, DW_KEY_STREAM, &bytes, where, err);
    if (status == DW_NOT_FOUND)
        status = dw_fail(err, DW_NOT_FOUND, dw_store_url(store),
                         "there is no stream here: it has no " DW_KEY_STREAM
                         ". `deltawire publish` makes one");
    if (status == DW_OK)
        status =
            dw_stream_record_parse(&s->record, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status == DW_OK && trust && trust->stream &&
        strcmp(s->record.stream, trust->stream) != 0)
        status = dw_fail(err, DW_UNTRUSTED, dw_store_url(store),
                         "this is stream %s, not stream %s that was asked for: another "
                         "stream took its place, or the URL or the id is wrong",
                         s->record.stream, trust->stream);
    if (status == DW_OK)
        status = dw_store_require(store, DW_KEY_STREAM, err);
    if (status == DW_OK)
        *out = s;
    else
        dw_stream_close(s);
    return status;
}

void dw_stream_close(dw_stream *s)
{
    if (!s)
        return;
    dw_stream_record_release(&s->record);
    dw_commit_record_release(&s->shown);
    dw_free(s->files);
    dw_blob_release(&s->file);
    dw_free(s->shortcuts);
    dw_free(s->trust);
    dw_free(s);
}

/* Other patterns make another table, which looks like another model. */
#define OTHER_PATTERNS                                                                   \
    "either the choice of quantised tensors differs (give the same patterns of tensors " \
    "to keep and to quantise as before), or the model does (publish it to another URL)"

static bool is_made_by_scheme(dw_dtype dtype)
{
    return dtype == DW_F8_E4M3 || dtype == DW_I8;
}

/* Whether one tensor of the stream is in these weights; T is theirs, or NULL. */
static dw_status check_tensor(const dw_stream *s, const dw_tensor *in_stream,
                              const dw_tensor *t, dw_error *err)
{
    const char *url = dw_store_url(s->store), *name = in_stream->name;
    const bool is_quantised = s->record.quantized.scheme[0] != '\0';
    if (!t)
        return dw_fail_tensor(
            err, DW_MISMATCH, url, name, "the stream has it, these weights do not: %s",
            is_quantised ? OTHER_PATTERNS : "they are of another model");
    if (is_quantised &&
        is_made_by_scheme(in_stream->dtype) != is_made_by_scheme(t->dtype))
        return dw_fail_tensor(err, DW_MISMATCH, url, name,
                              "the stream has it as %s, these weights as %s: %s",
                              dw_dtype_name(in_stream->dtype), dw_dtype_name(t->dtype),
                              OTHER_PATTERNS);
    return dw_tensor_fits_stream(in_stream, t, url, err);
}

static dw_status fail_count(const dw_stream *s, const dw_tensor *tensors,
                            size_t n_tensors, dw_error *err)
{
    const dw_stream_record *r = &s->record;
    char difference[DW_DIFFERENCE_TEXT];
    if (r->quantized.scheme[0])
        return dw_fail(
            err, DW_MISMATCH, dw_store_url(s->store),
            "the stream, quantised as %s, has %zu tensors, these weights would "
            "have %zu: %s",
            r->quantized.scheme, r->n_tensors, n_tensors, OTHER_PATTERNS);
    return dw_fail(
        err, DW_MISMATCH, dw_store_url(s->store),
        "the stream is of another model: it has %zu tensors, these weights "
        "have %zu%s",
        r->n_tensors, n_tensors,
        dw_describe_difference(difference, r->tensors, r->n_tensors, tensors, n_tensors));
}

/* Whether the stream is for this list of tensors, in whatever order. */
static dw_status check_model(const dw_stream *s, const dw_tensor *tensors,
                             size_t n_tensors, dw_error *err)
{
    if (n_tensors != s->record.n_tensors)
        return fail_count(s, tensors, n_tensors, err);
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++) {
        const dw_tensor *t = &s->record.tensors[i];
        size_t found = dw_name_index_find(&names, t->name);
        status = check_tensor(s, t, found == SIZE_MAX ? NULL : &tensors[found], err);
    }
    dw_name_index_release(&names);
    return status;
}

typedef struct rounding_text {
    char text[DW_QUANTIZED_TEXT + 32];
} rounding_text;

/* How F32 weights are quantised. */
static rounding_text describe_rounding(const dw_quantized *q)
{
    rounding_text r;
    if (strcmp(q->rounded, "none") == 0)
        snprintf(r.text, sizeof r.text, "from F32 as they are");
    else
        snprintf(r.text, sizeof r.text, "with F32 rounded to %s first", q->rounded);
    return r;
}

/* Whether the stream's tensors are made of the trainer's in the way that SPEC asks. */
static dw_status check_quantized(const dw_stream *s, const dw_stream_spec *spec,
                                 dw_error *err)
{
    const dw_quantized *there = &s->record.quantized, *asked = &spec->quantized;
    const char *url = dw_store_url(s->store);
    if (strcmp(there->scheme, asked->scheme) != 0)
        return dw_fail(
            err, DW_MISMATCH, url,
            "the stream is %s%s, these weights would be %s%s: %s, or publish to "
            "another URL",
            there->scheme[0] ? "quantised as " : "not quantised", there->scheme,
            asked->scheme[0] ? "quantised as " : "unquantised", asked->scheme,
            there->scheme[0] ? "quantise the trainer's weights in the stream's scheme"
                             : "publish them unquantised");
    if (strcmp(there->rounded, asked->rounded) != 0)
        return dw_fail(
            err, DW_MISMATCH, url,
            "the stream is quantised as %s, %s, these weights would be quantised %s: %s "
            "`quantize.from_f32`, or publish to another URL",
            there->scheme, describe_rounding(there).text, describe_rounding(asked).text,
            strcmp(there->rounded, "none") == 0 ? "add" : "drop");
    return DW_OK;
}

static dw_status put_stream_record(dw_store *store, const dw_stream_spec *spec,
                                   dw_error *err)
{
    const size_t n_tensors = spec->n_tensors;
    dw_tensor *sorted = dw_alloc_array(n_tensors, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, dw_store_url(store));
    memcpy(sorted, spec->tensors, n_tensors * sizeof *sorted);
    qsort(sorted, n_tensors, sizeof *sorted, dw_tensor_compare_names);
    dw_stream_record record = {.single_writer = spec->single_writer,
                               .quantized = spec->quantized,
                               .tensors = sorted,
                               .n_tensors = n_tensors};
    dw_writer bytes = {0};
    dw_status status = dw_random_id(record.stream, err);
    if (status == DW_OK)
        status = dw_stream_record_write(&bytes, &record, spec->key, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(store, DW_KEY_STREAM, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_CREATE, err);
    dw_writer_release(&bytes);
    dw_free(sorted);
    /* another was faster, or this one's own reply was lost: read back what is there */
    return status == DW_CONFLICT ? DW_OK : status;
}

static dw_status take_key(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    snprintf(context, DW_KEY_TEXT, "%s", entry->key);
    return DW_CANCELLED; /* one is enough */
}

dw_status dw_stream_check_vacant(dw_store *store, dw_error *err)
{
    static const char *const prefixes[] = {"commits/", "epochs/"};
    char key[DW_KEY_TEXT] = "";
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < 2; i++)
        status = dw_store_list(store, prefixes[i], NULL, take_key, key, err);
    if (key[0] == '\0')
        return status;
    /* another writer may have made it meanwhile */
    status = dw_store_stat(store, DW_KEY_STREAM, NULL, NULL, err);
    return status == DW_NOT_FOUND
               ? dw_fail(err, DW_CORRUPT, dw_store_url(store),
                         DW_KEY_STREAM
                         " is missing, but %s of a stream is here. Restore " DW_KEY_STREAM
                         " from a copy of the stream, or "
                         "publish to another URL",
                         key)
               : status;
}

dw_status dw_stream_check_spec(const dw_stream *s, const dw_stream_spec *spec,
                               dw_error *err)
{
    dw_status status = check_quantized(s, spec, err);
    return status == DW_OK ? check_model(s, spec->tensors, spec->n_tensors, err) : status;
}

dw_status dw_stream_create(dw_stream **out, dw_store *store, const dw_stream_spec *spec,
                           const dw_trust *trust, dw_error *err)
{
    dw_status status = dw_stream_open(out, store, trust, err);
    if (status == DW_NOT_FOUND && !(trust && trust->stream)) { /* a new id is random */
        status = dw_stream_check_vacant(store, err);
        if (status == DW_OK)
            status = put_stream_record(store, spec, err);
        if (status == DW_OK)
            status = dw_stream_open(out, store, trust, err);
    }
    if (status == DW_OK)
        status = dw_stream_check_spec(*out, spec, err);
    if (status != DW_OK) {
        dw_stream_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- the public API ---- */

const char *dw_stream_id(const dw_stream *s)
{
    return s->record.stream;
}

const dw_tensor *dw_stream_tensors(const dw_stream *s, size_t *n_tensors)
{
    *n_tensors = s->record.n_tensors;
    return s->record.tensors;
}

void dw_stream_get_info(const dw_stream *s, dw_stream_info *out)
{
    const dw_quantized *q = &s->record.quantized;
    const bool is_quantized = q->scheme[0] != 0;
    *out = (dw_stream_info){.quantization = is_quantized ? q->scheme : NULL,
                            .rounded = is_quantized ? q->rounded : NULL,
                            .single_writer = s->record.single_writer};
}

dw_status dw_stream_head(dw_stream *s, uint64_t *version, dw_error *err)
{
    return dw_stream_find_head(s, s->head, version, err);
}

dw_status dw_stream_version(dw_stream *s, uint64_t version, dw_version_info *out,
                            dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(s, version, &c, err);
    uint64_t restart;
    if (status == DW_NOT_FOUND && s->head != DW_NO_VERSION && version < s->head &&
        dw_stream_find_restart(s, version, &restart, NULL) == DW_OK &&
        restart == DW_NO_VERSION)
        return dw_stream_fail_hole(s, version, s->head, err);
    if (status == DW_NOT_FOUND)
        return dw_stream_fail_absent(s, version, err);
    if (status != DW_OK)
        return status;
    dw_commit_record_release(&s->shown);
    s->shown = c;
    *out = (dw_version_info){
        .version = version,
        .content = c.content,
        .epoch = c.epoch,
        .created = s->shown.created,
        .step = c.step,
        .notes = c.notes,
        .state = c.state,
        .n_changed = c.n_changed,
        .suspect_from = c.suspect_from,
        .times = c.times,
        .library = s->shown.made_by.library,
        .host = s->shown.made_by.host,
        .n_objects = c.objects.n,
        .n_bytes = dw_objects_bytes(&c.objects),
        .is_signed = c.seal.is_signed,
        .base = c.base,
        .base_sha256 = dw_sha256_is_given(c.base_sha256) ? s->shown.base_sha256 : NULL,
        .fork_url = c.fork.url,
        .fork_version = c.fork.version,
        .commit_sha256 = s->shown.seal.sha256,
        .restart = c.restart,
        .n_files = c.files.n,
        .n_file_bytes = dw_file_list_bytes(&c.files)};
    memcpy(out->key, c.seal.key, sizeof out->key);
    if (c.source.stream[0])
        out->source = (dw_version_source){s->shown.source.stream, c.source.version,
                                          s->shown.source.commit_sha256};
    return DW_OK;
}

static dw_status show_follower(dw_stream *s, const char *key, dw_follower_fn fn,
                               void *context, dw_error *err)
{
    char where[WHERE_BYTES];
    dw_writer bytes;
    dw_status status = read_record(s, key, &bytes, where, err);
    dw_follower_record f;
    if (status == DW_OK)
        status = dw_follower_record_parse(&f, bytes.bytes, bytes.n_bytes, where, err);
    dw_writer_release(&bytes);
    if (status != DW_OK)
        return status;
    char own_key[DW_KEY_TEXT]; /* nobody reports for another follower */
    dw_key_follower(own_key, f.id);
    if (strcmp(f.stream, s->record.stream) == 0 && strcmp(own_key, key) == 0)
        fn(context, &(dw_follower_info){f.id, f.version, f.host, f.status, f.message,
                                        f.time, f.times});
    dw_follower_record_release(&f);
    return DW_OK;
}

typedef struct follower_walk {
    dw_stream *stream;
    dw_follower_fn fn;
    void *context;
} follower_walk;

static dw_status visit_follower(void *context, const dw_store_entry *entry, dw_error *err)
{
    follower_walk *w = context;
    dw_status status = show_follower(w->stream, entry->key, w->fn, w->context, err);
    /* one that left meanwhile, or wrote rubbish, is not the others' fault */
    return dw_stream_stops(status) ? status : DW_OK;
}

dw_status dw_stream_followers(dw_stream *s, dw_follower_fn fn, void *context,
                              dw_error *err)
{
    follower_walk w = {s, fn, context};
    return dw_store_list(s->store, "followers/", NULL, visit_follower, &w, err);
}

dw_status dw_stream_forget_follower(dw_stream *s, const char *id, dw_error *err)
{
    if (!dw_follower_id_valid(id))
        return dw_fail(err, DW_INVALID, dw_store_url(s->store),
                       "'%s' cannot be the name of a follower", id);
    char key[DW_KEY_TEXT];
    dw_key_follower(key, id);
    dw_status status = dw_store_stat(s->store, key, NULL, NULL, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(s->store),
                       "no follower '%s' is listed: `deltawire status` lists them", id);
    return status == DW_OK ? dw_store_remove(s->store, key, err) : status;
}
