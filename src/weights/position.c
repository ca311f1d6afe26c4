/* A seal covers the record, so that damage is found. */
#include "weights/position.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "codec/seal.h"
#include "stream/record_files.h"
#include "tensor/safetensors.h"
#include "weights/own_dir.h"

#define FORMAT    "deltawire-replica/1"
#define MAX_BYTES (16u << 20)
/* Interrupted installs of several versions can add up to more files than one has. */
#define MAX_FILES (8u * DW_MAX_FILES)

typedef struct record {
    dw_record_kind kind;
    dw_position at, next;
    dw_patch_seal patch;
    dw_installed files;
} record;

/* ---- positions ---- */

dw_position dw_position_of(const dw_commit_record *commit)
{
    dw_position p = {.version = commit->version, .state = commit->state};
    memcpy(p.stream, commit->stream, sizeof p.stream);
    memcpy(p.commit_sha256, commit->seal.sha256, sizeof p.commit_sha256);
    return p;
}

bool dw_position_same(const dw_position *a, const dw_position *b)
{
    return a->version == b->version && a->state == b->state &&
           strcmp(a->stream, b->stream) == 0 &&
           memcmp(a->commit_sha256, b->commit_sha256, sizeof a->commit_sha256) == 0;
}

/* ---- companion files ---- */

void dw_installed_release(dw_installed *installed)
{
    dw_file_list_release(&installed->list);
    *installed = (dw_installed){0};
}

static bool same_entry(const dw_file_entry *a, const dw_file_entry *b)
{
    return strcmp(a->name, b->name) == 0 && dw_file_entry_same(a, b);
}

bool dw_installed_same(const dw_installed *a, const dw_installed *b)
{
    bool same = a->list.n == b->list.n && a->installing == b->installing;
    for (size_t i = 0; same && i < a->list.n; i++)
        same = same_entry(&a->list.items[i], &b->list.items[i]);
    return same;
}

dw_status dw_installed_add(dw_installed *to, const dw_file_entry *entry, dw_error *err)
{
    dw_file_list *list = &to->list;
    size_t at = list->n; /* after those of the same name */
    while (at > 0 && strcmp(list->items[at - 1].name, entry->name) > 0)
        at--;
    for (size_t i = at; i > 0 && strcmp(list->items[i - 1].name, entry->name) == 0; i--)
        if (same_entry(&list->items[i - 1], entry))
            return DW_OK;
    if (list->n == MAX_FILES)
        return dw_fail(err, DW_INVALID, entry->name,
                       "%u companion files were installed, and installs of others were "
                       "interrupted: remove those that nobody needs",
                       MAX_FILES);
    dw_file_entry *items =
        dw_realloc_array(list->items, list->n + 1, sizeof *list->items);
    if (items)
        list->items = items;
    char *name = items ? dw_copy_string(entry->name) : NULL;
    if (!name)
        return dw_fail_memory(err, entry->name);
    memmove(items + at + 1, items + at, (list->n - at) * sizeof *items);
    items[at] = (dw_file_entry){.name = name, .n_bytes = entry->n_bytes};
    memcpy(items[at].sha256, entry->sha256, sizeof entry->sha256);
    list->n++;
    return DW_OK;
}

/* ---- reading ---- */

static bool read_position(dw_position *out, const dw_json *object)
{
    const char *stream = dw_json_string(dw_json_get(object, "stream"));
    const char *sha256 = dw_json_string(dw_json_get(object, "commit_sha256"));
    const char *state = dw_json_string(dw_json_get(object, "state"));
    const char *follows = dw_json_string(dw_json_get(object, "follows"));
    uint8_t id[(DW_ID_TEXT - 1) / 2];
    if (!stream || !sha256 || !state ||
        !dw_json_unsigned(dw_json_get(object, "version"), &out->version) ||
        !dw_hex_decode(id, sizeof id, stream) ||
        !dw_hex_decode(out->commit_sha256, DW_SHA256_BYTES, sha256) ||
        strlen(state) != 16 || !dw_parse_number(state, 16, &out->state))
        return false;
    memcpy(out->stream, stream, sizeof out->stream);
    if (follows && dw_hex_decode(id, sizeof id, follows))
        memcpy(out->follows, follows, sizeof out->follows);
    return true;
}

static bool read_patch(dw_patch_seal *out, const dw_json *object)
{
    const char *hash = dw_json_string(dw_json_get(object, "xxh64"));
    return hash && strlen(hash) == 16 && dw_parse_number(hash, 16, &out->hash) &&
           dw_json_unsigned(dw_json_get(object, "bytes"), &out->n_bytes) &&
           out->n_bytes > 0;
}

/* *IS_GOOD is false if it is no list of files. The sizes are not summed up: the files in
 * it may be those of several versions. */
static dw_status read_files(dw_installed *out, const dw_json *array, bool *is_good,
                            dw_error *err)
{
    dw_status status = DW_OK;
    *is_good = *is_good && dw_json_is_array(array) && dw_json_size(array) <= MAX_FILES;
    for (const dw_json *item = *is_good ? dw_json_first(array) : NULL;
         item && *is_good && status == DW_OK; item = dw_json_next(array, item)) {
        const char *name = dw_json_string(dw_json_get(item, "name"));
        const char *sha256 = dw_json_string(dw_json_get(item, "sha256"));
        dw_file_entry entry = {.name = (char *)name};
        *is_good = name && sha256 &&
                   dw_json_unsigned(dw_json_get(item, "bytes"), &entry.n_bytes) &&
                   dw_file_name_valid(name, NULL) &&
                   dw_hex_decode(entry.sha256, sizeof entry.sha256, sha256);
        if (*is_good)
            status = dw_installed_add(out, &entry, err);
    }
    return status;
}

/* Reads the members. *IS_GOOD is false if they are not those of a record. */
static dw_status read_members(record *out, const dw_json *root, bool *is_good,
                              dw_error *err)
{
    const char *format = dw_json_string(dw_json_get(root, "format"));
    const dw_json *version = dw_json_get(root, "version");
    const dw_json *next = dw_json_get(root, "next");
    const dw_json *patch = dw_json_get(root, "patch");
    const dw_json *files = dw_json_get(root, "files");
    *is_good = format && strcmp(format, FORMAT) == 0 &&
               (!version || dw_json_is_null(version) || read_position(&out->at, root)) &&
               (!next || read_position(&out->next, next)) &&
               (!patch || read_patch(&out->patch, patch));
    out->kind = version ? DW_RECORD_SEALED : DW_RECORD_NONE;
    out->files.installing = dw_json_get(root, "installing") != NULL;
    return files ? read_files(&out->files, files, is_good, err) : DW_OK;
}

static void release(record *r)
{
    dw_installed_release(&r->files);
    *r = (record){.at = dw_nowhere, .next = dw_nowhere};
}

static dw_status parse(record *out, const uint8_t *bytes, size_t n_bytes,
                       const char *path, dw_error *err)
{
    dw_json *root = NULL;
    bool is_good = false;
    const bool is_sealed = dw_seal_good(bytes, n_bytes, NULL, 0);
    dw_status status =
        is_sealed ? dw_json_read(&root, bytes, n_bytes, "record", path, err) : DW_OK;
    if (is_sealed && status == DW_OK)
        status = read_members(out, root, &is_good, err);
    dw_json_free(root);
    if (is_sealed && status == DW_OK && !is_good)
        status = dw_fail(err, DW_UNSUPPORTED, path,
                         "this version of deltawire does not know this record of a "
                         "replica. Use the version that wrote it, or another directory");
    if (is_good && status == DW_OK)
        return DW_OK;
    release(out);
    out->kind = DW_RECORD_DAMAGED;
    return status == DW_NO_MEMORY || status == DW_UNSUPPORTED ? status : DW_OK;
}

static dw_status read_record(record *out, const char *dir, dw_error *err)
{
    *out = (record){.at = dw_nowhere, .next = dw_nowhere};
    char *path = dw_join_path(dir, DW_POSITION_NAME);
    if (!path)
        return dw_fail_memory(err, dir);
    bool exists = false;
    uint8_t *bytes = NULL;
    size_t n_bytes;
    dw_status status = dw_own_dir_check(dir, err);
    if (status == DW_OK)
        status = dw_file_exists(path, &exists, err);
    if (status == DW_OK && exists)
        status = dw_read_file(&bytes, &n_bytes, path, MAX_BYTES, err);
    if (status == DW_CORRUPT) { /* too long for a record */
        out->kind = DW_RECORD_DAMAGED;
        status = DW_OK;
    } else if (status == DW_OK && exists) {
        status = parse(out, bytes, n_bytes, path, err);
    }
    dw_free(bytes);
    dw_free(path);
    return status;
}

dw_status dw_position_read(dw_position *at, dw_position *next, dw_record_kind *kind,
                           const char *dir, dw_error *err)
{
    record r;
    dw_status status = read_record(&r, dir, err);
    *at = r.at;
    *next = r.next;
    *kind = r.kind;
    release(&r);
    return status;
}

dw_status dw_position_read_patch(dw_patch_seal *patch, dw_record_kind *kind,
                                 const char *dir, dw_error *err)
{
    record r;
    dw_status status = read_record(&r, dir, err);
    *patch = r.patch;
    *kind = r.kind;
    release(&r);
    return status;
}

dw_status dw_position_read_files(dw_installed *out, const char *dir, dw_error *err)
{
    record r;
    dw_status status = read_record(&r, dir, err);
    *out = r.files;
    return status;
}

/* ---- writing ---- */

static void write_position(dw_writer *w, const dw_position *p)
{
    char sha256[DW_SHA256_TEXT];
    dw_hex_encode(sha256, p->commit_sha256, DW_SHA256_BYTES);
    dw_write_format(w,
                    "\"stream\":\"%s\",\"version\":%" PRIu64
                    ",\"commit_sha256\":\"%s\",\"state\":\"%016" PRIx64 "\"",
                    p->stream, p->version, sha256, p->state);
    if (p->follows[0])
        dw_write_format(w, ",\"follows\":\"%s\"", p->follows);
}

static void write_files(dw_writer *w, const dw_file_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, list->items[i].sha256, DW_SHA256_BYTES);
        dw_write_text(w, i > 0 ? ",{\"name\":" : ",\"files\":[{\"name\":");
        dw_write_json_string(w, list->items[i].name);
        dw_write_format(w, ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}",
                        list->items[i].n_bytes, sha256);
    }
    if (list->n > 0)
        dw_write_u8(w, ']');
}

static dw_status write_record(const record *r, const char *dir, dw_error *err)
{
    dw_writer w = {0};
    dw_write_text(&w, "{\"format\":\"" FORMAT "\"");
    /* the version is at the top level, where people and scripts look for it */
    if (r->at.version != DW_NO_VERSION) {
        dw_write_u8(&w, ',');
        write_position(&w, &r->at);
    } else if (r->kind != DW_RECORD_NONE) {
        dw_write_text(&w, ",\"version\":null");
    }
    if (r->next.version != DW_NO_VERSION) {
        dw_write_text(&w, ",\"next\":{");
        write_position(&w, &r->next);
        dw_write_u8(&w, '}');
    }
    if (r->patch.n_bytes > 0)
        dw_write_format(&w,
                        ",\"patch\":{\"bytes\":%" PRIu64 ",\"xxh64\":\"%016" PRIx64 "\"}",
                        r->patch.n_bytes, r->patch.hash);
    if (r->files.installing)
        dw_write_text(&w, ",\"installing\":true");
    write_files(&w, &r->files.list);
    return dw_seal_write(&w, dir, DW_POSITION_NAME, err);
}

/* What is there, to replace a half of it. */
static dw_status read_old(record *old, const char *dir, dw_error *err)
{
    dw_status status = dw_own_dir_make(dir, err);
    if (status == DW_OK)
        status = read_record(old, dir, err);
    return status;
}

dw_status dw_position_write(const dw_position *at, const dw_position *next,
                            const char *dir, dw_error *err)
{
    return dw_position_write_patch(at, next, &(dw_patch_seal){0}, dir, err);
}

dw_status dw_position_write_patch(const dw_position *at, const dw_position *next,
                                  const dw_patch_seal *patch, const char *dir,
                                  dw_error *err)
{
    record r;
    dw_status status = read_old(&r, dir, err);
    if (status != DW_OK)
        return status;
    r.kind = DW_RECORD_SEALED;
    r.at = *at;
    r.next = next ? *next : dw_nowhere;
    r.patch = *patch;
    status = write_record(&r, dir, err);
    release(&r);
    return status;
}

dw_status dw_position_write_files(const dw_installed *files, const char *dir,
                                  dw_error *err)
{
    record r;
    dw_status status = read_old(&r, dir, err);
    if (status != DW_OK)
        return status;
    const dw_installed old = r.files;
    r.files = *files;
    status = write_record(&r, dir, err);
    r.files = old;
    release(&r);
    return status;
}
