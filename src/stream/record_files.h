/* The companion files that a commit names (docs/PROTOCOL.md, section 2). */
#ifndef DW_STREAM_RECORD_FILES_H
#define DW_STREAM_RECORD_FILES_H

#include "deltawire/stream.h"
#include "stream/record_fields.h"

#define DW_MAX_FILES       1024        /* of one version */
#define DW_MAX_FILES_BYTES (64u << 20) /* of all files of one version together */
#define DW_MAX_FILE_NAME   255         /* bytes */

/* Whether a file of that name may be part of a version. If not, *WHY (which may be NULL)
 * is set to what is wrong with it, as the end of a sentence that begins with the name. */
bool dw_file_name_valid(const char *name, const char **why);
/* Whether the name is hidden, deltawire's own or that of weights: a pattern means none of
 * them. */
bool dw_file_name_reserved(const char *name);

/* What the bytes of a file can be, if its name ends in .json. */
typedef enum dw_json_look {
    DW_JSON_WHOLE, /* begins and ends as an object or an array does; or no such name */
    DW_JSON_TORN,  /* empty or ends too early, as a file that is being written */
    DW_JSON_NEVER  /* begins as neither does */
} dw_json_look;
dw_json_look dw_file_json_look(const char *name, const void *bytes, size_t n_bytes);

/* DW_INVALID unless the files can be published together: names, each once; their number;
 * their size; JSON that is none. */
dw_status dw_files_check(const dw_file *files, size_t n_files, dw_error *err);

/* The entry of that name, or NULL. */
const dw_file_entry *dw_file_list_find(const dw_file_list *list, const char *name);
/* Whether they have the same bytes. */
bool dw_file_entry_same(const dw_file_entry *a, const dw_file_entry *b);
uint64_t dw_file_list_bytes(const dw_file_list *list);
dw_status dw_file_list_copy(dw_file_list *out, const dw_file_list *list, dw_error *err);
void dw_file_list_release(dw_file_list *list);

extern const dw_member_own dw_files_member; /* a dw_file_list, optional in a commit */

#endif
