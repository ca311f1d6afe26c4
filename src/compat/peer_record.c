/* Fetches, parses and keeps the records of versions. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "compat/names.h"
#include "compat/peer_int.h"
#include "store/store.h"
#include "tensor/safetensors.h"

void dw_peer_record_free(dw_peer_record *r)
{
    if (!r)
        return;
    dw_json_free(r->root);
    dw_free(r->files);
    dw_free(r->entries);
    dw_free(r);
}

/* ---- common to all formats ---- */

void dw_peer_refuse(dw_peer_record *r, const char *format, ...)
{
    va_list args;
    if (r->refusal[0])
        return;
    va_start(args, format);
    vsnprintf(r->refusal, sizeof r->refusal, format, args);
    va_end(args);
}

void dw_peer_set_checksum(dw_peer_record *r, const char *name)
{
    if (!dw_checksum_from_name(&r->checksum, name))
        dw_peer_refuse(r,
                       "its checksums are %.40s, which is not supported; xxh3-128 and "
                       "adler32 are",
                       name);
}

static int compare_names(const void *left, const void *right)
{
    const dw_peer_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static int compare_places(const void *left, const void *right)
{
    const dw_peer_entry *a = left, *b = right;
    int order = strcmp(a->file, b->file);
    return order ? order : strcmp(a->name, b->name);
}

dw_status dw_peer_list_files(dw_peer_record *r, const char *dir, const char *where,
                             dw_error *err)
{
    dw_peer_entry *e = r->entries;
    size_t n_room = 0;
    if (r->n_entries > 0)
        qsort(e, r->n_entries, sizeof *e, compare_names);
    for (size_t i = 1; i < r->n_entries; i++)
        if (strcmp(e[i - 1].name, e[i].name) == 0)
            return dw_fail_tensor(err, DW_CORRUPT, where, e[i].name, "it comes twice");
    if (r->n_entries > 0)
        qsort(e, r->n_entries, sizeof *e, compare_places);
    for (size_t i = 0; i < r->n_entries; i++) {
        if (i > 0 && strcmp(e[i].file, e[i - 1].file) == 0) {
            r->files[r->n_files - 1].end++;
            continue;
        }
        if (!dw_peer_name_is_plain(e[i].file))
            return dw_fail(err, DW_CORRUPT, where,
                           "'%.120s' is no plain name of a safetensors file", e[i].file);
        if (!dw_grow_array((void **)&r->files, &n_room, r->n_files, sizeof *r->files))
            return dw_fail_memory(err, where);
        dw_peer_file *file = &r->files[r->n_files++];
        *file = (dw_peer_file){.first = i, .end = i + 1};
        snprintf(file->key, sizeof file->key, "%s/%s", dir, e[i].file);
    }
    return DW_OK;
}

/* ---- fetching ---- */

/* The first bytes of a TRL file, with all of its header. */
static dw_status fetch_head(dw_writer *out, dw_store *store, const char *key,
                            dw_error *err)
{
    size_t n_read, n = DW_PEER_HEAD_BYTES;
    *out = (dw_writer){0};
    for (int turn = 0; turn < 2; turn++) {
        dw_writer_release(out);
        out->bytes = dw_alloc(n);
        if (!out->bytes)
            return dw_fail_memory(err, key);
        dw_status status = dw_store_get(store, key, 0, out->bytes, n, &n_read, NULL, err);
        if (status != DW_OK)
            return status;
        out->n_bytes = n_read;
        uint64_t n_header = n_read >= 8 ? dw_load64(out->bytes) : 0;
        if (n_header > DW_SAFETENSORS_MAX_HEADER || 8 + n_header <= n_read)
            break; /* complete, or the length is not credible */
        n = 8 + (size_t)n_header;
    }
    return DW_OK;
}

/* Two runs may write the same record for one version. The sizes of its files, and the
 * first weights of a whole version, distinguish them. */
static dw_status take_fingerprint(dw_peer_record *r, const dw_peer *p,
                                  const dw_writer *text, dw_error *err)
{
    dw_sha256 hash;
    dw_status status = dw_sha256_init(&hash, err);
    if (status != DW_OK)
        return status;
    dw_sha256_update(&hash, text->bytes, text->n_bytes);
    for (size_t i = 0; i < r->n_files; i++)
        dw_sha256_update(&hash, &r->files[i].n_bytes, sizeof r->files[i].n_bytes);
    if (p->format == DW_PEER_SLIME && r->is_whole && r->n_files > 0 &&
        r->files[0].n_bytes != UINT64_MAX) {
        size_t n_read;
        uint8_t *head = dw_alloc(DW_PEER_HEAD_BYTES);
        status = head ? dw_store_get(p->store, r->files[0].key, 0, head,
                                     DW_PEER_HEAD_BYTES, &n_read, NULL, err)
                      : dw_fail_memory(err, r->files[0].key);
        if (status == DW_OK)
            dw_sha256_update(&hash, head, n_read);
        dw_free(head);
    }
    if (status == DW_OK)
        status = dw_sha256_final(&hash, r->sha256, err);
    dw_sha256_release(&hash);
    return status;
}

static void take_sizes(dw_peer_record *r, const dw_peer *p)
{
    for (size_t i = 0; i < r->n_files; i++) {
        const dw_listed *found = p->format == DW_PEER_TRL
                                     ? &r->listed
                                     : dw_listing_find(&p->listings[0], r->files[i].key);
        r->files[i].n_bytes = found ? found->n_bytes : UINT64_MAX; /* missing */
        if (found)
            r->n_bytes += found->n_bytes;
    }
}

static dw_status add_trl_file(dw_peer_record *r, dw_error *err)
{
    r->files = dw_alloc_zeroed(1, sizeof *r->files);
    if (!r->files)
        return dw_fail_memory(err, r->listed.key);
    memcpy(r->files[0].key, r->listed.key, sizeof r->files[0].key);
    r->n_files = 1;
    return DW_OK;
}

static dw_status read_record(dw_peer_record *r, const dw_peer *p, dw_error *err)
{
    dw_writer text = {0};
    char where[DW_STORE_WHERE];
    const char *key = r->listed.key;
    dw_store_where(p->store, key, where, sizeof where);
    dw_status status =
        p->format == DW_PEER_TRL
            ? fetch_head(&text, p->store, key, err)
            : dw_store_get_all(p->store, key, DW_PEER_RECORD_BYTES, &text, err);
    if (status == DW_OK && p->format == DW_PEER_TRL) {
        status = dw_peer_read_trl(r, strncmp(key, DW_TRL_ANCHORS, 8) == 0, text.bytes,
                                  text.n_bytes, where, err);
        if (status == DW_OK)
            status = add_trl_file(r, err);
    } else if (status == DW_OK) {
        status = dw_peer_read_slime(r, text.bytes, text.n_bytes, where, err);
    }
    if (status == DW_OK && r->named_base != DW_NO_VERSION && r->named_base >= r->version)
        status = dw_fail(err, DW_CORRUPT, where,
                         "version %" PRIu64 " says that it starts from version %" PRIu64
                         ", which does not come before it",
                         r->version, r->named_base);
    if (status == DW_OK) {
        take_sizes(r, p);
        status = take_fingerprint(r, p, &text, err);
    }
    dw_writer_release(&text);
    return status;
}

/* Whether one more record of N_BYTES exceeds the limit. Records of TRL keep no text. */
static bool is_full(const dw_peer *p, uint64_t n_bytes)
{
    for (size_t i = 0; i < p->n_records; i++)
        n_bytes += p->records[i]->listed.n_bytes;
    return p->n_records == DW_PEER_KEPT_RECORDS ||
           (p->format != DW_PEER_TRL && n_bytes > DW_PEER_RECORD_BYTES);
}

dw_status dw_peer_record_get(dw_peer *p, uint64_t version, const dw_peer_record **out,
                             dw_error *err)
{
    for (size_t i = 0; i < p->n_records; i++)
        if (p->records[i]->version == version) {
            *out = p->records[i];
            return DW_OK;
        }
    const dw_listed *listed = dw_peer_find(p, version);
    if (!listed)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(p->store),
                       "version %" PRIu64 " is not there", version);
    dw_peer_record *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, listed->key);
    r->version = version;
    r->named_base = DW_NO_VERSION;
    r->listed = *listed;
    dw_status status = read_record(r, p, err);
    if (status != DW_OK) {
        dw_peer_record_free(r);
        return status;
    }
    while (p->n_records > 0 && is_full(p, r->listed.n_bytes)) {
        dw_peer_record_free(p->records[0]);
        p->n_records--;
        memmove(p->records, p->records + 1, p->n_records * sizeof *p->records);
    }
    p->records[p->n_records++] = r;
    *out = r;
    return DW_OK;
}
