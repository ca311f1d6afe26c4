/* Facts about a stream that several verbs show. */
#ifndef CLI_STREAM_INFO_H
#define CLI_STREAM_INFO_H

#include <deltawire/stream.h>
#include <jansson.h>

/* "delta", "anchor", "base", "fork". */
const char *cli_content_name(dw_content content);

/* Seconds between a time of a record and now; -1 where it does not parse. */
double cli_age(const char *rfc3339);

typedef struct cli_model_size {
    size_t n_tensors;
    uint64_t n_elems;
    uint64_t n_bytes;
} cli_model_size;

cli_model_size cli_model_count(const dw_stream *stream);

/* Versions FROM to END - 1 may not be the trainer's weights. The row is left out if FROM
 * is 0. */
void cli_print_suspect(uint64_t from, uint64_t end);
json_t *cli_suspect_json(uint64_t from, uint64_t end);

#define CLI_AGE_SIZE 32

/* "12 s", "3 min", "5.2 h", "9 days"; "unknown" for less than 0. Returns OUT. */
const char *cli_format_age(char out[CLI_AGE_SIZE], double seconds);

/* A copy of the stream's further ways: those of the stream live until the next call with
 * it alone. To be freed; NULL where there are none. */
dw_status cli_copy_ways(dw_stream *stream, dw_edge **ways, size_t *n_ways, dw_error *err);

#endif
