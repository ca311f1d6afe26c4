/* Which version weights are, and the record of it beside them.
 *
 * The record, .deltawire/state.json, names the version that the weights of a directory
 * are and, while an update is under way, the next one and the patch that leads to it. It
 * also names the companion files that a follower installed there (follow/installed.h):
 *
 *     {"format":"deltawire-replica/1","stream":"...","version":3,"commit_sha256":"...",
 *      "state":"...","next":{...},"patch":{"bytes":9,"xxh64":"..."},"installing":true,
 *      "files":[{"name":"config.json","bytes":663,"sha256":"..."},...],"seal":"..."}
 *
 * `"version":null` says that the weights are no version. A record that only names files
 * says nothing about weights. Who writes one half keeps the other. The seal shows damage.
 */
#ifndef DW_WEIGHTS_POSITION_H
#define DW_WEIGHTS_POSITION_H

#include "codec/patch.h"
#include "stream/stream.h"

#define DW_POSITION_NAME ".deltawire/state.json"

/* A version of a stream, and its weights' digest. */
typedef struct dw_position {
    char stream[DW_ID_TEXT];
    char follows[DW_ID_TEXT]; /* the fork whose follower passes through this version; "":
                                 none */
    uint64_t version;         /* DW_NO_VERSION: none */
    uint8_t commit_sha256[DW_SHA256_BYTES];
    dw_digest state;
} dw_position;

static const dw_position dw_nowhere = {.version = DW_NO_VERSION};

dw_position dw_position_of(const dw_commit_record *commit);
bool dw_position_same(const dw_position *a, const dw_position *b);

/* Whether the record of a directory can be trusted. */
typedef enum dw_record_kind {
    DW_RECORD_NONE,    /* there is no such file, or it only names companion files */
    DW_RECORD_SEALED,  /* it is as it was written */
    DW_RECORD_DAMAGED, /* its bytes changed: it names no version */
} dw_record_kind;

/* Reads the record of DIR. AT and NEXT are dw_nowhere if it names no such version, is
 * damaged, or is not there. A damaged record is not an error. */
dw_status dw_position_read(dw_position *at, dw_position *next, dw_record_kind *kind,
                           const char *dir, dw_error *err);

/* The same for the patch that the record names: no other one may be applied to the
 * weights. Zeros: none. */
dw_status dw_position_read_patch(dw_patch_seal *patch, dw_record_kind *kind,
                                 const char *dir, dw_error *err);

/* Replaces the record of DIR, durably. NEXT may be NULL. */
dw_status dw_position_write(const dw_position *at, const dw_position *next,
                            const char *dir, dw_error *err);

/* The same, and names the patch that leads to the next version. */
dw_status dw_position_write_patch(const dw_position *at, const dw_position *next,
                                  const dw_patch_seal *patch, const char *dir,
                                  dw_error *err);

/* The companion files that a follower installed. */
typedef struct dw_installed {
    dw_file_list list; /* ordered by name; their keys are empty. While files are installed
                          a name can be there twice: the old file and the new one */
    bool installing;   /* some may be old, new or missing */
} dw_installed;

void dw_installed_release(dw_installed *installed);

/* Adds a copy of ENTRY, unless it is there. DW_INVALID if there are too many. */
dw_status dw_installed_add(dw_installed *to, const dw_file_entry *entry, dw_error *err);

bool dw_installed_same(const dw_installed *a, const dw_installed *b);

/* Reads which companion files the record of DIR names: none if it is damaged or not
 * there. */
dw_status dw_position_read_files(dw_installed *out, const char *dir, dw_error *err);

/* Replaces these, durably. */
dw_status dw_position_write_files(const dw_installed *files, const char *dir,
                                  dw_error *err);

#endif
