/* libdeltawire: keeps inference engines on the trainer's newest weights by moving
 * only the elements that changed, exact to the bit.
 *
 * Read in this order: error.h, tensor.h, checkpoint.h, progress.h, digest.h, delta.h;
 * then, for versions in a bucket, store.h, sign.h, stream.h, publish.h, follow.h, and
 * peer.h and peer_publish.h for those of other systems; and where they are served,
 * control.h, snapshot.h, layout.h, engine.h, rollout.h, agent.h.
 */
#ifndef DELTAWIRE_H
#define DELTAWIRE_H

#include "deltawire/agent.h"
#include "deltawire/checkpoint.h"
#include "deltawire/control.h"
#include "deltawire/delta.h"
#include "deltawire/digest.h"
#include "deltawire/engine.h"
#include "deltawire/error.h"
#include "deltawire/follow.h"
#include "deltawire/guard.h"
#include "deltawire/layout.h"
#include "deltawire/peer.h"
#include "deltawire/peer_publish.h"
#include "deltawire/progress.h"
#include "deltawire/publish.h"
#include "deltawire/rollout.h"
#include "deltawire/sign.h"
#include "deltawire/snapshot.h"
#include "deltawire/store.h"
#include "deltawire/stream.h"
#include "deltawire/tensor.h"
#include "deltawire/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version as a string, which can be newer than the header's. */
DW_API const char *dw_version(void);

/* The kernels in use: "plain", "avx2", "avx512" or "neon". The best one the machine
 * has is taken; the environment variable DELTAWIRE_KERNEL names another. */
DW_API const char *dw_kernel_name(void);

/* Replaces malloc, realloc and free for what the library allocates itself; jansson and
 * zstd, which it uses, keep their own. Call it
 * before anything else; NULL restores the defaults. Results must be aligned as
 * malloc's are. */
typedef struct dw_allocator {
    void *(*allocate)(void *context, size_t n_bytes);
    void *(*reallocate)(void *context, void *pointer, size_t n_bytes);
    void (*release)(void *context, void *pointer);
    void *context;
} dw_allocator;

DW_API void dw_set_allocator(const dw_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
