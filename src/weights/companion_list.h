/* The list of the companion files that are ours (companion_files.h):
 *
 *     {"format":"deltawire-files/1","files":[{"name":"config.json","bytes":663,
 *      "sha256":"..."},...],"next":[...],"seal":"..."}
 *
 * Names ascend. `next` is there only while files are installed. The seal (codec/seal.h)
 * shows damage: a damaged list names nothing. */
#ifndef DW_WEIGHTS_COMPANION_LIST_H
#define DW_WEIGHTS_COMPANION_LIST_H

#include "stream/record_files.h"

typedef struct dw_companion_list {
    dw_file_list files; /* that are ours. Their keys are empty */
    dw_file_list next;  /* that will be: an install was interrupted */
    bool exists;        /* the file is there, good or damaged */
} dw_companion_list;

void dw_companion_list_release(dw_companion_list *list);

/* Reads the list of DIR. One that is missing or damaged is empty. DW_UNSUPPORTED if a
 * later version of this library wrote it. */
dw_status dw_companion_list_read(dw_companion_list *out, const char *dir, dw_error *err);

/* Replaces the list of DIR, durably. A list of nothing is removed. */
dw_status dw_companion_list_write(const dw_companion_list *list, const char *dir,
                                  dw_error *err);

/* Appends a copy of ENTRY, without its key. */
dw_status dw_companion_list_add(dw_file_list *list, const dw_file_entry *entry,
                                dw_error *err);

/* Whether they have the same names and bytes. */
bool dw_companion_list_same(const dw_file_list *a, const dw_file_list *b);

#endif
