/* Patches in targets that the CPU reaches. */
#ifndef DW_LAYOUT_LAYOUT_PATCH_H
#define DW_LAYOUT_LAYOUT_PATCH_H

#include "layout/layout_walk.h"

/* DW_UNSUPPORTED or DW_INVALID if a target cannot take stores. */
dw_status dw_layout_check_memory(const dw_layout *layout, dw_error *err);

/* Compares, stores and reads back, except in targets on devices; computes the effect on
 * the digest too. Restores the old values if it fails. */
dw_status dw_layout_patch_host(dw_layout_job *job, unsigned n_threads, dw_error *err);
/* Takes it back. */
void dw_layout_unpatch_host(dw_layout_job *job);

#endif
