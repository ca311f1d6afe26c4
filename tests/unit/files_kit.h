/* A stream whose versions have companion files. Needs `wrap: dw_commit_record_write`:
 * commits get the files that `files_of` has for their version. Include after
 * stream_kit.h. */
#ifndef DW_TEST_FILES_KIT_H
#define DW_TEST_FILES_KIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "stream/record_files.h"
#include "stream/stream.h"
#include "unit/temp_dir.h"

#define FILES_VERSIONS 8

/* The files of a version: names, which ascend, and their texts. Ends with a NULL. */
typedef struct companion_text {
    const char *name, *text;
} companion_text;

/* By version; NULL: the commit says nothing about files. */
static const companion_text *files_of[FILES_VERSIONS];
static dw_store *files_store;

dw_status __real_dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                        const dw_sign_key *sign, dw_error *err);
dw_status __wrap_dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                        const dw_sign_key *sign, dw_error *err);
dw_status __wrap_dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                        const dw_sign_key *sign, dw_error *err)
{
    const companion_text *texts =
        record->version < FILES_VERSIONS ? files_of[record->version] : NULL;
    if (!texts)
        return __real_dw_commit_record_write(out, record, sign, err);
    dw_file_list list = {.is_given = true};
    while (texts[list.n].name)
        list.n++;
    list.items = dw_alloc_zeroed(list.n, sizeof *list.items);
    for (size_t i = 0; i < list.n; i++) {
        dw_file_entry *entry = &list.items[i];
        entry->name = dw_copy_string(texts[i].name);
        entry->n_bytes = strlen(texts[i].text);
        dw_sha256_of(entry->sha256, texts[i].text, strlen(texts[i].text), NULL);
        dw_key_file(entry->key, record->version, record->write_id, (unsigned)i);
        dw_status put = dw_store_put_bytes(files_store, entry->key, texts[i].text,
                                           (size_t)entry->n_bytes, DW_PUT_CREATE, err);
        assert_true(put == DW_OK || put == DW_CONFLICT);
    }
    const dw_file_list given = record->files;
    record->files = list;
    dw_status status = __real_dw_commit_record_write(out, record, sign, err);
    record->files = given;
    dw_file_list_release(&list);
    return status;
}

/* Whether DIR/NAME is a file with this text; NULL: whether nothing is there. */
static inline bool companion_is(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, F_OK) != 0)
        return text == NULL;
    if (!text)
        return false;
    size_t n_bytes;
    uint8_t *bytes = get_file(path, &n_bytes);
    const bool same = n_bytes == strlen(text) && memcmp(bytes, text, n_bytes) == 0;
    free(bytes);
    return same;
}

#endif
