#include "delta_report.h"

#include <inttypes.h>

#include "json_out.h"
#include "quant_names.h"
#include "print.h"

#define TRL_INDEX_BYTES 4

/* The bytes of a unit that a delta changes: C64 counts as two F32, sub-byte types as
 * bytes.
 */
static unsigned unit_bytes(dw_dtype dtype)
{
    unsigned n_bits = dtype == DW_C64 ? 32 : dw_dtype_bits(dtype);
    return n_bits < 8 || n_bits % 8 ? 1 : n_bits / 8;
}

cli_delta_report cli_delta_report_of(const dw_delta *delta)
{
    cli_delta_report r = {0};
    dw_delta_get_info(delta, &r.info);
    for (size_t i = 0; i < r.info.n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        r.n_trl_bytes += t.n_changed * (TRL_INDEX_BYTES + unit_bytes(t.dtype));
        if (cli_is_scale(t.name, t.dtype))
            r.n_scales += t.n_changed;
        else if (cli_is_quantized(t.dtype))
            r.n_quantized += t.n_changed;
        r.n_class_blocks += t.n_class_blocks;
        r.n_packed_blocks += t.n_packed_blocks;
        r.n_stored_blocks += t.n_stored_blocks;
        r.n_same_blocks +=
            t.n_blocks - t.n_class_blocks - t.n_packed_blocks - t.n_stored_blocks;
    }
    return r;
}

double cli_density(const cli_delta_report *report)
{
    return cli_ratio((double)report->info.n_changed, (double)report->info.n_model_elems);
}

double cli_bits_a_change(uint64_t n_bytes, uint64_t n_changed)
{
    return cli_ratio(8 * (double)n_bytes, (double)n_changed);
}

const char *cli_codec_title(const dw_delta_info *info)
{
    if (info->codec == DW_CODEC_CLASS)
        return "class";
    if (info->codec == DW_CODEC_GAP)
        return "gap (TRL v3)";
    return info->trl_layout == 1 ? "raw (TRL v1)" : "raw (TRL v3)";
}

void cli_delta_report_print(const cli_delta_report *r, uint64_t full_bytes)
{
    const dw_delta_info *info = &r->info;
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    cli_print_row("codec", "%s", cli_codec_title(info));
    cli_print_row("version", "%" PRIu64 " -> %" PRIu64, info->base_version,
                  info->new_version);
    if (info->n_model_elems > 0)
        cli_print_row("changed", "%s of %s elements (%.3f %%)",
                      cli_format_count(a, info->n_changed),
                      cli_format_count(b, info->n_model_elems), 100 * cli_density(r));
    else
        cli_print_row("changed", "%s elements of an unknown number",
                      cli_format_count(a, info->n_changed));
    if (r->n_quantized > 0 || r->n_scales > 0)
        cli_print_row("quantised", "%s weights and %s scales of them",
                      cli_format_count(a, r->n_quantized),
                      cli_format_count(b, r->n_scales));
    cli_print_row("tensors", "%zu with changes", info->n_tensors);
    cli_print_row("size", "%s bytes, %.2f bits a change",
                  cli_format_count(a, info->n_bytes),
                  cli_bits_a_change(info->n_bytes, info->n_changed));
    if (full_bytes > 0)
        cli_print_row("full model", "%s, %.1f times the size of this delta",
                      cli_format_size(a, full_bytes),
                      cli_ratio((double)full_bytes, (double)info->n_bytes));
    cli_print_row("TRL raw", "%s, %.1f times the size of this delta",
                  cli_format_size(a, r->n_trl_bytes),
                  cli_ratio((double)r->n_trl_bytes, (double)info->n_bytes));
    if (info->codec == DW_CODEC_CLASS)
        cli_print_row("blocks",
                      "%" PRIu64 " class, %" PRIu64 " packed, %" PRIu64
                      " stored, %" PRIu64 " unchanged",
                      r->n_class_blocks, r->n_packed_blocks, r->n_stored_blocks,
                      r->n_same_blocks);
    if (info->has_digests) {
        cli_print_row("base", "%016" PRIx64, info->base_state);
        cli_print_row("new", "%016" PRIx64, info->new_state);
    } else {
        cli_print_row("digests", "none: nothing to verify against");
    }
}

json_t *cli_delta_report_json(const cli_delta_report *r, uint64_t full_bytes)
{
    const dw_delta_info *info = &r->info;
    json_t *object = json_object();
    cli_json_text(object, "codec", dw_codec_name(info->codec));
    if (info->trl_layout > 0)
        cli_json_count(object, "trl_layout", info->trl_layout);
    cli_json_count(object, "base_version", info->base_version);
    cli_json_count(object, "new_version", info->new_version);
    if (info->has_digests) {
        cli_json_digest(object, "base_state", info->base_state);
        cli_json_digest(object, "new_state", info->new_state);
    }
    cli_json_count(object, "changed", info->n_changed);
    cli_json_count(object, "changed_tensors", info->n_tensors);
    if (r->n_quantized > 0 || r->n_scales > 0) {
        cli_json_count(object, "changed_quantized", r->n_quantized);
        cli_json_count(object, "changed_scales", r->n_scales);
    }
    if (info->n_model_elems > 0) {
        cli_json_count(object, "model_elements", info->n_model_elems);
        cli_json_count(object, "model_tensors", info->n_model_tensors);
        cli_json_real(object, "density", cli_density(r));
    }
    cli_json_count(object, "bytes", info->n_bytes);
    cli_json_real(object, "bits_a_change",
                  cli_bits_a_change(info->n_bytes, info->n_changed));
    if (full_bytes > 0)
        cli_json_count(object, "full_bytes", full_bytes);
    cli_json_count(object, "trl_raw_bytes", r->n_trl_bytes);
    if (info->codec == DW_CODEC_CLASS) {
        json_t *blocks = json_object();
        cli_json_count(blocks, "class", r->n_class_blocks);
        cli_json_count(blocks, "packed", r->n_packed_blocks);
        cli_json_count(blocks, "stored", r->n_stored_blocks);
        cli_json_count(blocks, "unchanged", r->n_same_blocks);
        json_object_set_new(object, "blocks", blocks);
    }
    return object;
}
