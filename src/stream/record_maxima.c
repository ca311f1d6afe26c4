/* The maxima of scales that ranks share: reading and writing the record.
 *
 *     "maxima":[[tensor,first,"8 hexadecimal digits for each scale"],...]
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "stream/record_parts.h"
#include "stream/record_seal.h"

#define DIGITS 8

/* Takes the digits of one run, TEXT; false if one of them is none. */
static bool take_values(uint32_t *out, const char *text, size_t n)
{
    if (!dw_hex_decode(out, n * sizeof *out, text))
        return false;
    for (size_t i = 0; i < n; i++)
        out[i] = __builtin_bswap32(out[i]); /* the first digits are the high ones */
    return true;
}

/* The text of a run, which is [tensor, first, text]; NULL if ENTRY is no such array. */
static const char *read_run(dw_maxima_run *out, const dw_json *entry)
{
    if (!dw_json_is_array(entry) || dw_json_size(entry) != 3)
        return NULL;
    const dw_json *tensor = dw_json_first(entry), *first = dw_json_next(entry, tensor);
    const char *text = dw_json_string(dw_json_next(entry, first));
    uint64_t number;
    if (!dw_json_number(&number, tensor) || number >= DW_MAX_TENSORS ||
        !dw_json_number(&out->first, first) || !text)
        return NULL;
    out->tensor = (size_t)number;
    const size_t n_digits = strlen(text);
    out->n = n_digits / DIGITS;
    return n_digits > 0 && n_digits % DIGITS == 0 ? text : NULL;
}

static bool follows(const dw_maxima_run *before, const dw_maxima_run *run)
{
    return before->tensor < run->tensor ||
           (before->tensor == run->tensor && run->first >= before->first + before->n);
}

static void take_runs(dw_fields *f, dw_maxima_record *out)
{
    const dw_json *list = dw_field_array(f, "maxima");
    if (!list)
        return;
    size_t n_values = 0;
    dw_maxima_run run;
    for (const dw_json *it = dw_json_first(list); it; it = dw_json_next(list, it))
        n_values += read_run(&run, it) ? run.n : 0;
    out->runs = dw_alloc_array(dw_json_size(list), sizeof *out->runs);
    out->values = dw_alloc_array(n_values, sizeof *out->values);
    if (!out->runs || !out->values) {
        dw_fields_fail_memory(f);
        return;
    }
    for (const dw_json *it = dw_json_first(list); it; it = dw_json_next(list, it)) {
        const char *text = read_run(&run, it);
        const dw_maxima_run *before = out->n_runs ? &out->runs[out->n_runs - 1] : NULL;
        run.at = out->n_values;
        if (!text || (before && !follows(before, &run)) ||
            !take_values(out->values + run.at, text, run.n)) {
            dw_fields_fail(f, DW_CORRUPT, "maxima",
                           "has an entry %zu that is not [tensor, first, digits], or not "
                           "after the one before",
                           out->n_runs);
            return;
        }
        out->n_values += run.n;
        out->runs[out->n_runs++] = run;
    }
}

dw_status dw_maxima_record_parse(dw_maxima_record *out, const void *bytes, size_t n,
                                 const char *where, dw_error *err)
{
    *out = (dw_maxima_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "maxima",
                                      DW_RECORD_BYTES, bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    out->epoch = dw_field_number(&f, "epoch");
    dw_field_id(&f, out->writer, "writer");
    out->turn = dw_field_number(&f, "turn");
    out->attempt = dw_field_number(&f, "attempt");
    dw_field_rank(&f, &out->rank, &out->n_ranks);
    take_runs(&f, out);
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_maxima_record_release(out);
    return f.status;
}

void dw_maxima_record_release(dw_maxima_record *record)
{
    dw_free(record->runs);
    dw_free(record->values);
    *record = (dw_maxima_record){0};
}

dw_status dw_maxima_record_write(dw_writer *out, dw_maxima_record *record,
                                 const dw_sign_key *key, dw_error *err)
{
    const size_t start = out->n_bytes;
    dw_record_begin(out, "maxima", record->stream);
    dw_write_format(out,
                    ",\"version\":%" PRIu64 ",\"epoch\":%" PRIu64
                    ",\"writer\":\"%s\",\"turn\":%" PRIu64 ",\"attempt\":%" PRIu64
                    ",\"rank\":%" PRIu32 ",\"n_ranks\":%" PRIu32 ",\"maxima\":[",
                    record->version, record->epoch, record->writer, record->turn,
                    record->attempt, record->rank, record->n_ranks);
    for (size_t i = 0; i < record->n_runs; i++) {
        const dw_maxima_run *run = &record->runs[i];
        dw_write_format(out, "%s[%zu,%" PRIu64 ",\"", i ? "," : "", run->tensor,
                        run->first);
        for (size_t k = 0; k < run->n; k++) {
            char digits[DIGITS + 1];
            snprintf(digits, sizeof digits, "%08" PRIx32, record->values[run->at + k]);
            dw_write_bytes(out, digits, DIGITS);
        }
        dw_write_text(out, "\"]");
    }
    dw_write_text(out, "]");
    dw_status status = dw_record_end(out, start, &record->seal, key, err);
    if (status == DW_OK && out->n_bytes - start > DW_RECORD_BYTES)
        status = dw_fail(err, DW_INVALID, NULL,
                         "%zu scales are shared between ranks, too many for one record: "
                         "split the tensors where rows or blocks of 128 rows end",
                         record->n_values);
    if (status != DW_OK)
        out->n_bytes = start;
    return status;
}
