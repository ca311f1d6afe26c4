/* config.json with a `quantization_config`.
 *
 * The member is put behind the last one, and every byte of the text stays as it is:
 * numbers in particular, which a JSON library would spell in another way.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "quant/quant.h"

/* Engines ask for the module of a layer: the name without the parameter. The embeddings'
 * matrix may serve as output head, which then has no tensor: the head is listed unless it
 * is quantised. */
#define HEAD "lm_head"

static char *module_of(const char *name)
{
    char *module = dw_copy_string(name);
    char *dot = module ? strrchr(module, '.') : NULL;
    if (dot)
        *dot = '\0';
    return module;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool is_quantised_head(const dw_quant_entry *e)
{
    static const char end[] = HEAD ".weight";
    const char *name = e->tensor.name;
    const size_t n = strlen(name), n_end = sizeof end - 1;
    return e->role == DW_QUANT_WEIGHT && n >= n_end &&
           strcmp(name + n - n_end, end) == 0 &&
           (n == n_end || name[n - n_end - 1] == '.');
}

static bool head_is_quantised(const dw_quant_plan *plan)
{
    for (size_t i = 0; i < plan->n_entries; i++)
        if (is_quantised_head(&plan->entries[i]))
            return true;
    return false;
}

static bool is_kept_matrix(const dw_quant_entry *e)
{
    return e->role == DW_QUANT_COPY && e->tensor.n_dims >= 2;
}

/* Writes the modules whose matrices stay as they are, each once, as a JSON array. */
static dw_status write_kept(dw_writer *w, const dw_quant_plan *plan, dw_error *err)
{
    char **modules = dw_alloc_zeroed(plan->n_entries + 1, sizeof *modules);
    size_t n = 0;
    bool have_memory = modules != NULL;
    if (have_memory && !head_is_quantised(plan))
        have_memory = (modules[n++] = dw_copy_string(HEAD)) != NULL;
    for (size_t i = 0; have_memory && i < plan->n_entries; i++)
        if (is_kept_matrix(&plan->entries[i]))
            have_memory =
                (modules[n++] = module_of(plan->entries[i].tensor.name)) != NULL;
    if (have_memory) {
        qsort(modules, n, sizeof *modules, compare_texts);
        dw_write_text(w, "[");
        for (size_t i = 0; i < n; i++) {
            if (i > 0 && strcmp(modules[i], modules[i - 1]) == 0)
                continue;
            dw_write_text(w, i ? ", " : "");
            dw_write_json_string(w, modules[i]);
        }
        dw_write_text(w, "]");
    }
    for (size_t i = 0; i < n; i++)
        dw_free(modules[i]);
    dw_free(modules);
    return have_memory ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status write_block_config(dw_writer *w, const dw_quant_plan *plan,
                                    dw_error *err)
{
    dw_write_text(w, "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
                     "\"activation_scheme\": \"dynamic\", "
                     "\"weight_block_size\": [128, 128], \"modules_to_not_convert\": ");
    dw_status status = write_kept(w, plan, err);
    dw_write_text(w, "}");
    return status;
}

static dw_status write_row_config(dw_writer *w, const dw_quant_plan *plan, dw_error *err)
{
    const bool is_int = plan->scheme == DW_QUANT_INT8_ROW;
    const char *type = is_int ? "int" : "float";
    dw_write_format(w,
                    "{\"quant_method\": \"compressed-tensors\", \"format\": "
                    "\"%s-quantized\", \"quantization_status\": \"compressed\", "
                    "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
                    "\"weights\": {\"num_bits\": 8, \"type\": \"%s\", \"strategy\": "
                    "\"channel\", \"symmetric\": true, \"dynamic\": false}, "
                    "\"input_activations\": {\"num_bits\": 8, \"type\": \"%s\", "
                    "\"strategy\": \"token\", \"symmetric\": true, \"dynamic\": true}, "
                    "\"output_activations\": null}}, \"kv_cache_scheme\": null, "
                    "\"ignore\": ",
                    type, type, type);
    dw_status status = write_kept(w, plan, err);
    dw_write_text(w, "}");
    return status;
}

/* DW_INVALID if the text is no object or names a quantisation. *IS_EMPTY: no members. */
static dw_status check(const void *config, size_t n_bytes, const char *path,
                       bool *is_empty, dw_error *err)
{
    static const char *const taken[] = {"quantization_config", "compression_config"};
    dw_json *root = NULL;
    dw_error fault = {0};
    dw_status status =
        dw_json_read_python(&root, config, n_bytes, "config", path, &fault);
    if (status == DW_NO_MEMORY)
        return dw_fail_memory(err, path);
    if (status != DW_OK)
        return dw_fail(err, DW_INVALID, path,
                       "%s: correct it, or leave it out of the version", fault.text);
    *is_empty = dw_json_size(root) == 0;
    for (size_t i = 0; status == DW_OK && i < 2; i++)
        if (dw_json_get(root, taken[i]))
            status = dw_fail(err, DW_INVALID, path,
                             "it has a '%s' already, but the weights are not quantised: "
                             "remove that member, or publish without quantising",
                             taken[i]);
    dw_json_free(root);
    return status;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

dw_status dw_quant_config(dw_writer *out, const void *config, size_t n_bytes,
                          const dw_quant_plan *plan, const char *path, dw_error *err)
{
    bool is_empty;
    dw_status status = check(config, n_bytes, path, &is_empty, err);
    if (status != DW_OK)
        return status;
    const char *text = config;
    size_t end = n_bytes; /* of the members: before the white space and the last brace */
    while (text[end - 1] != '}')
        end--;
    for (end--; is_space(text[end - 1]);)
        end--;
    dw_write_bytes(out, text, end);
    dw_write_text(out, is_empty ? "" : ",");
    dw_write_text(out, "\n  \"quantization_config\": ");
    status = plan->scheme == DW_QUANT_FP8_BLOCK ? write_block_config(out, plan, err)
                                                : write_row_config(out, plan, err);
    dw_write_bytes(out, text + end, n_bytes - end);
    if (status == DW_OK && out->failed)
        status = dw_fail_memory(err, path);
    return status;
}
