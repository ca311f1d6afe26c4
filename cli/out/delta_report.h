/* The facts about a delta that several verbs report. */
#ifndef CLI_DELTA_REPORT_H
#define CLI_DELTA_REPORT_H

#include <jansson.h>

#include <deltawire/delta.h>

typedef struct cli_delta_report {
    dw_delta_info info;
    uint64_t n_trl_bytes;    /* indices and values as TRL's raw layout would ship them */
    uint64_t n_class_blocks; /* over all tensors; codec class only */
    uint64_t n_packed_blocks;
    uint64_t n_stored_blocks;
    uint64_t n_same_blocks;
    uint64_t n_scales;    /* changed scales of quantised weights ... */
    uint64_t n_quantized; /* ... and changed fp8 and int8 elements */
} cli_delta_report;

cli_delta_report cli_delta_report_of(const dw_delta *delta);

double cli_density(const cli_delta_report *report);
double cli_bits_a_change(uint64_t n_bytes, uint64_t n_changed);

/* "class", "gap (TRL v3)", "raw (TRL v1)", ... */
const char *cli_codec_title(const dw_delta_info *info);

/* Prints rows on stdout; makes a new JSON object. FULL_BYTES is the size of the whole
 * model, or 0 if it is not known. */
void cli_delta_report_print(const cli_delta_report *report, uint64_t full_bytes);
json_t *cli_delta_report_json(const cli_delta_report *report, uint64_t full_bytes);

#endif
