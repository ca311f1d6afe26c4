/* Records of any bytes. The first byte chooses the kind, and whether the seal is made
 * valid first, so that more than the seal is tested. A record is refused, or it can be
 * written and read again with the same result, and its covers can be checked against any
 * table.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "unit/sample_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_covers(const void *bytes, size_t n_bytes)
{
    dw_commit_record commit;
    dw_receipt_record receipt;
    dw_error err;
    if (dw_commit_record_parse(&commit, bytes, n_bytes, "fuzz", &err) == DW_OK) {
        bool disjoint = dw_objects_check(&commit.objects, sample_tensors, SAMPLE_TENSORS,
                                         false, "fuzz", &err) == DW_OK;
        bool whole = dw_objects_check(&commit.objects, sample_tensors, SAMPLE_TENSORS,
                                      true, "fuzz", &err) == DW_OK;
        if (whole && !disjoint)
            abort();
        dw_commit_record_release(&commit);
    }
    if (dw_receipt_record_parse(&receipt, bytes, n_bytes, "fuzz", &err) == DW_OK) {
        dw_covers_check(receipt.covers, receipt.n_covers, sample_tensors, SAMPLE_TENSORS,
                        "fuzz", &err);
        dw_receipt_record_release(&receipt);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    int sample = bytes[0] % SAMPLE_COUNT;
    /* a separate allocation, so that a read past the end is noticed */
    uint8_t *record = malloc(n_bytes);
    memcpy(record, bytes + 1, n_bytes - 1);
    if (bytes[0] / SAMPLE_COUNT % 2 == 1)
        reseal(record, n_bytes - 1);
    dw_writer first = {0}, again = {0};
    dw_error err;
    if (parse_sample(sample, record, n_bytes - 1, NULL, NULL, &err) == DW_OK) {
        if (parse_sample(sample, record, n_bytes - 1, NULL, &first, &err) != DW_OK ||
            parse_sample(sample, first.bytes, first.n_bytes, NULL, &again, &err) != DW_OK)
            abort();
        /* these two get new dates */
        bool is_dated = sample == SAMPLE_STREAM || sample == SAMPLE_EPOCH;
        if (first.n_bytes != again.n_bytes ||
            (!is_dated && memcmp(first.bytes, again.bytes, first.n_bytes) != 0))
            abort();
        check_covers(record, n_bytes - 1);
    }
    dw_writer_release(&first);
    dw_writer_release(&again);
    free(record);
    return 0;
}
