#include "compat/peer_publish_int.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "tensor/tensor_list.h"

#define SHARD_BYTES (1ull << 30)

/* ---- opening ---- */

static dw_status check_options(const dw_peer_publish_options *o, dw_error *err)
{
    const char *fault = NULL;
    if (o->format != DW_PEER_TRL && o->format != DW_PEER_SLIME)
        fault = "the format is none that is known";
    else if (o->format == DW_PEER_TRL && o->trl_layout != 1 && o->trl_layout != 3)
        fault = "TRL's layout is 1 or 3";
    else if (o->format == DW_PEER_TRL && o->trl_codec != DW_CODEC_RAW &&
             (o->trl_codec != DW_CODEC_GAP || o->trl_layout == 1))
        fault = "TRL's files hold raw positions or gaps, in layout 1 only raw positions";
    else if (o->first_version == DW_NO_VERSION)
        fault = "the number of the first version is out of range";
    return fault ? dw_fail(err, DW_INVALID, NULL, "%s", fault) : DW_OK;
}

static dw_status check_tensors(const dw_peer_publisher *p, dw_error *err)
{
    dw_status status = dw_tensors_check(p->tensors, p->n_tensors, err);
    for (size_t i = 0; status == DW_OK && i < p->n_tensors; i++)
        if (p->options.format == DW_PEER_TRL && p->tensors[i].dtype != DW_BF16)
            status = dw_fail_tensor(err, DW_UNSUPPORTED, NULL, p->tensors[i].name,
                                    "TRL's files hold only BF16, and this is %s: convert "
                                    "it, or take slime's format",
                                    dw_dtype_name(p->tensors[i].dtype));
    return status;
}

static dw_status copy_options(dw_peer_publisher *p, const dw_peer_publish_options *from,
                              dw_error *err)
{
    dw_peer_publish_options *o = &p->options;
    *o = *from;
    o->baseline_dir = from->baseline_dir ? dw_copy_string(from->baseline_dir) : NULL;
    if (o->whole_every == 0 && o->format == DW_PEER_TRL)
        o->whole_every = o->trl_layout == 1 ? 10 : 20;
    if (o->max_shard_bytes == 0)
        o->max_shard_bytes = SHARD_BYTES;
    return from->baseline_dir && !o->baseline_dir ? dw_fail_memory(err, NULL) : DW_OK;
}

void dw_peer_look_at_tensors(dw_peer_publisher *p)
{
    for (size_t i = 0; i < p->n_tensors; i++)
        p->next[i] = p->tensors[p->order[i]];
}

static dw_status fill(dw_peer_publisher *p, const dw_peer_publish_options *options,
                      dw_error *err)
{
    dw_name_index names;
    dw_status status = copy_options(p, options, err);
    if (status == DW_OK)
        status = check_tensors(p, err);
    if (status == DW_OK)
        status = dw_name_index_init(&names, p->tensors, p->n_tensors, err);
    if (status != DW_OK)
        return status;
    p->order = names.order; /* moved here */
    p->next = dw_alloc_array(p->n_tensors, sizeof *p->next);
    if (!p->next)
        return dw_fail_memory(err, NULL);
    dw_peer_look_at_tensors(p);
    status = dw_peer_baseline_look(p, err);
    if (status == DW_OK && p->newest == DW_NO_VERSION)
        status = dw_peer_baseline_check(p, err);
    return status == DW_OK ? dw_peer_baseline_follow(p, err) : status;
}

dw_status dw_peer_publisher_open(dw_peer_publisher **out, dw_store *store,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 const dw_peer_publish_options *given, dw_error *err)
{
    *out = NULL;
    dw_peer_publish_options options;
    dw_peer_publish_options_init(&options, (dw_peer_format)0);
    dw_status status =
        dw_options_take(&options, sizeof options, given, "dw_peer_publish_options", err);
    if (status == DW_OK)
        status = check_options(&options, err);
    if (status != DW_OK)
        return status;
    dw_peer_publisher *p = dw_alloc_zeroed(1, sizeof *p);
    if (!p)
        return dw_fail_memory(err, NULL);
    p->store = store;
    p->tensors = tensors;
    p->n_tensors = n_tensors;
    p->newest = p->unsure = DW_NO_VERSION;
    status = fill(p, &options, err);
    if (status != DW_OK)
        dw_peer_publisher_close(p);
    else
        *out = p;
    return status;
}

void dw_peer_publisher_close(dw_peer_publisher *p)
{
    if (!p)
        return;
    dw_peer_baseline_release(p);
    dw_free((char *)p->options.baseline_dir);
    dw_free(p->order);
    dw_free(p->next);
    dw_free(p);
}
