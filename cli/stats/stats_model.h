/* The model that `deltawire stats` analyses: its tensors, the role of each in a
 * transformer, and the memory for two versions and for the history of each element.
 *
 *     then     the version before a step      [elements], a nameless mapped file
 *     now      the version after it           [elements]
 *     history  of each element, 16 bits       bit 0: changed in the step before, bit 1:
 *                                             in the one before that, ... bit 14;
 *                                             bit 15: the last change went up
 *
 * Elements are units of the codec: C64 is two F32, types below a byte are bytes.
 */
#ifndef CLI_STATS_MODEL_H
#define CLI_STATS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <deltawire/base.h>
#include <deltawire/tensor.h>

/* What the bits of an element mean. */
typedef struct stats_format {
    dw_dtype dtype; /* of a unit: F32 for C64 */
    unsigned n_bits;
    unsigned exponent_shift;
    uint32_t exponent_mask; /* 0: no exponent; all elements are one class */
    bool is_float;          /* ordered by sign and magnitude */
    bool has_ulps;          /* moves are counted in ulps */
    bool is_fnuz;           /* no -0: its pattern is the only NaN */
    uint64_t first_special; /* magnitudes from here on are infinite or NaN */
} stats_format;

#define STATS_MAX_EXPONENTS 256

typedef enum stats_kind {
    STATS_EMBED,
    STATS_Q_PROJ,
    STATS_K_PROJ,
    STATS_V_PROJ,
    STATS_QKV_PROJ,
    STATS_O_PROJ,
    STATS_GATE_PROJ,
    STATS_UP_PROJ,
    STATS_GATE_UP_PROJ,
    STATS_DOWN_PROJ,
    STATS_EXPERTS,
    STATS_ROUTER,
    STATS_NORM,
    STATS_LM_HEAD,
    STATS_SCALES, /* of quantised weights */
    STATS_OTHER,
    STATS_N_KINDS
} stats_kind;

/* "embed", "q_proj", ... */
const char *stats_kind_name(stats_kind kind);

#define STATS_NO_LAYER UINT32_MAX

typedef struct stats_tensor {
    stats_kind kind;
    uint32_t layer;
    size_t group; /* the group of its kind in its layer */
    stats_format format;
    uint64_t n_elems;
    uint8_t *then, *now; /* [n_elems] of the format */
    uint16_t *history;   /* [n_elems] */
} stats_tensor;

/* A kind of tensors in a layer. */
typedef struct stats_group {
    stats_kind kind;
    uint32_t layer;
} stats_group;

typedef struct stats_model {
    size_t n_tensors;
    stats_tensor *tensors;
    dw_tensor *then, *now; /* [n_tensors] the same for the library; names are borrowed */
    uint64_t n_elems, n_bytes;
    stats_group *groups; /* ascending by layer, those without one last; then by kind */
    size_t n_groups;
    uint8_t *scratch;
    size_t n_scratch_bytes;
} stats_model;

/* Makes room, filled with zeros, for two versions of these tensors in a nameless file in
 * WORK_DIR (NULL: TMPDIR, or /tmp). Names and shapes of TENSORS are borrowed. */
dw_status stats_model_init(stats_model *out, const dw_tensor *tensors, size_t n_tensors,
                           const char *work_dir, dw_error *err);
void stats_model_release(stats_model *model);

/* Maps a file without a name. The system removes it when the process ends. */
dw_status stats_scratch_map(uint8_t **out, uint64_t n_bytes, const char *work_dir,
                            dw_error *err);
void stats_scratch_unmap(uint8_t *scratch, size_t n_bytes);

#endif
