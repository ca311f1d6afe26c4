/* A repair of a quantised stream from a trainer's checkpoint. */
#ifndef DW_PUBLISH_REPAIR_QUANT_H
#define DW_PUBLISH_REPAIR_QUANT_H

#include "deltawire/publish.h"
#include "weights/whole_model.h"
#include "publish/restart.h"

/* Quantises TENSORS as the stream is, which says how and which ones, into OUT; and adds
 * that to the config.json among the files of the version. DW_MISMATCH if they are not of
 * its model. */
dw_status dw_repair_quantize(dw_restart *out, dw_publisher *p, const dw_tensor *tensors,
                             size_t n_tensors, dw_error *err);

#endif
