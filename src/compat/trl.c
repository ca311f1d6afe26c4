/* Parses the header of a TRL file: __metadata__ and the number of tensors. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json_tree.h"
#include "codec/trl_delta.h"
#include "compat/peer_int.h"

static const char *text_of(const dw_json *object, const char *key)
{
    return dw_json_string(dw_json_get(object, key));
}

/* Reads the metadata of a delta. */
static dw_status read_delta(dw_peer_record *r, const dw_json *meta, const char *where,
                            dw_error *err)
{
    const char *format = text_of(meta, "format"), *sparse = text_of(meta, "sparse");
    const char *encoding = text_of(meta, "encoding");
    if (!format || strcmp(format, DW_TRL_FORMAT) != 0 || !sparse ||
        strcmp(sparse, "True") != 0)
        return dw_fail(err, DW_CORRUPT, where,
                       "this is no delta of TRL's: its metadata says neither '%s' nor "
                       "sparse",
                       DW_TRL_FORMAT);
    if (encoding && strcmp(encoding, "raw") != 0 && strcmp(encoding, "gap_delta") != 0)
        dw_peer_refuse(r,
                       "TRL's encoding '%.40s' is not supported; 'raw' and "
                       "'gap_delta' are",
                       encoding);
    return DW_OK;
}

static dw_status read_metadata(dw_peer_record *r, bool is_anchor, const dw_json *meta,
                               const char *where, dw_error *err)
{
    const char *named = text_of(meta, "model_version");
    uint64_t version;
    if (named && (!dw_parse_number(named, 10, &version) || version != r->version))
        return dw_fail(err, DW_CORRUPT, where,
                       "the file is named version %" PRIu64 ", but says that it is %.40s",
                       r->version, named);
    if (!is_anchor)
        return read_delta(r, meta, where, err);
    const char *sparse = text_of(meta, "sparse");
    if (sparse && strcmp(sparse, "True") == 0)
        return dw_fail(err, DW_CORRUPT, where,
                       "it is a delta, but has the name of an anchor");
    r->is_whole = true;
    return DW_OK;
}

dw_status dw_peer_read_trl(dw_peer_record *r, bool is_anchor, const void *head,
                           size_t n_head, const char *where, dw_error *err)
{
    dw_reader reader = dw_reader_of(head, n_head);
    uint64_t n = dw_read_u64(&reader);
    const uint8_t *header = dw_read_bytes(&reader, n);
    if (!header)
        return dw_fail(err, DW_CORRUPT, where,
                       "the header of the safetensors file is cut off");
    dw_json *root;
    dw_status status = dw_json_read(&root, header, (size_t)n, "header", where, err);
    if (status != DW_OK)
        return status;
    const dw_json *meta = dw_json_get(root, "__metadata__");
    r->n_tensors = dw_json_size(root) - (meta != NULL);
    status = read_metadata(r, is_anchor, meta, where, err);
    dw_json_free(root);
    return status;
}
