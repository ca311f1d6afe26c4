/* A stream whose versions have companion files. Needs `wrap: dw_commit_record_write`:
 * commits get the files that `files_of` has for their version. Include after
 * stream_kit.h and companion_kit.h. */
#ifndef DW_TEST_FILES_STREAM_H
#define DW_TEST_FILES_STREAM_H

#include "stream/file_transfer.h"
#include "stream/stream.h"

#define FILES_VERSIONS 8

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
    dw_file_list list = companion_list(texts);
    for (size_t i = 0; i < list.n; i++) {
        dw_key_file(list.items[i].key, record->version, record->write_id, (unsigned)i);
        assert_int_equal(dw_file_put(files_store, &list.items[i], texts[i].text, err),
                         DW_OK);
    }
    const dw_file_list given = record->files;
    record->files = list;
    dw_status status = __real_dw_commit_record_write(out, record, sign, err);
    record->files = given;
    dw_file_list_release(&list);
    return status;
}

#endif
