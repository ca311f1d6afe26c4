/* Facts about a stream that several verbs show. */
#ifndef CLI_STREAM_INFO_H
#define CLI_STREAM_INFO_H

#include <jansson.h>
#include <time.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "keys.h"

/* "delta", "anchor", "base", "fork". */
const char *cli_content_name(dw_content content);

/* Parses a time of a record, in whole seconds; -1 if it does not parse. */
time_t cli_time(const char *rfc3339);

/* Seconds between a time of a record and now; -1 if it does not parse. */
double cli_age(const char *rfc3339);

/* The lowest restart above VERSION; versions between the two are not needed.
 * DW_NO_VERSION: none. */
dw_status cli_restart_after(uint64_t *restart, dw_stream *stream, uint64_t version,
                            dw_error *err);

typedef struct cli_model_size {
    size_t n_tensors;
    uint64_t n_elems;
    uint64_t n_bytes;
} cli_model_size;

cli_model_size cli_model_count(const dw_stream *stream);

#define CLI_QUANTIZED_SIZE 128

/* "fp8-block, F32 rounded to bf16 first"; false if the stream is not quantised. */
bool cli_format_quantized(char out[CLI_QUANTIZED_SIZE], const dw_stream *stream);
/* Adds the member "quantized" to OBJECT, if the stream is. */
void cli_json_quantized(json_t *object, const dw_stream *stream);

#define CLI_SUSPECT_SIZE 128

/* Writes a phrase: versions FROM to END - 1 may differ from the trainer's weights.
 * Returns OUT. */
const char *cli_format_suspect(char out[CLI_SUSPECT_SIZE], uint64_t from, uint64_t end);

/* Prints a row with that phrase; no row if FROM is 0. */
void cli_print_suspect(uint64_t from, uint64_t end);
json_t *cli_suspect_json(uint64_t from, uint64_t end);

/* The member "files" of a version: an array, or null if the version says nothing about
 * files. */
json_t *cli_files_json(const dw_file_info *files, size_t n_files, bool is_given);

#define CLI_AGE_SIZE 32

/* "12 s", "3 min", "5.2 h", "9 days"; "unknown" for less than 0. Returns OUT. */
const char *cli_format_age(char out[CLI_AGE_SIZE], double seconds);

/* Copies the shortcuts to versions FIRST to LAST, because those of the stream live only
 * until the next call. The caller frees them; NULL if there are none. */
dw_status cli_copy_shortcuts(dw_stream *stream, uint64_t first, uint64_t last,
                             dw_edge **shortcuts, size_t *n_shortcuts, dw_error *err);

/* DW_CORRUPT if the version after VERSION, which is far below HEAD, is missing: a
 * follower at VERSION cannot go on. dw_stream_check_log does this near the head. */
dw_status cli_check_next(dw_stream *stream, uint64_t version, uint64_t head,
                         dw_error *err);

/* Adds the member "base_sha256": the hash, or null if the record has none. */
void cli_json_base_sha256(json_t *object, const dw_version_info *info);

/* Adds the members "library" and "host" of the writer, if they are recorded. */
void cli_json_provenance(json_t *object, const dw_version_info *info);

/* Warnings go to stderr; with --json they are events, or, if the verb prints one object,
 * they go into LIST, an array, which cli_json_warnings adds to that object. */
void cli_warn(const cli_session *s, json_t *list, const dw_error *warning);

/* Warns if the newest version was lost: latest.json names it, but it is missing. Returns
 * whether it was. */
bool cli_warn_lost(const cli_session *s, const dw_stream *stream, json_t *list);

/* Warns if keys are trusted and a checkpoint BASE is given (it may be NULL), but the
 * stream has no SHA-256 to prove it. */
void cli_warn_base(const cli_session *s, dw_stream *stream, const cli_keys *keys,
                   const char *base, json_t *list);

/* Member "warnings", if there are any. LIST may be NULL. */
void cli_json_warnings(json_t *object, json_t *list);

#endif
