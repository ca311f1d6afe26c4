/* The guard: what happens if a mapped file shrinks. Experimental.
 *
 * The system raises SIGBUS if a process touches a page of a mapped file that is no longer
 * there, and that ends the process. The library installs no signal handlers by itself.
 * Without the guard it reads and writes the files that it mapped by system calls, which
 * report such a loss as an error. That is slower, and it cannot protect the host's own
 * reads of tensors that point into a mapped file (dw_checkpoint_tensors, dw_snapshot_*).
 *
 * With the guard, the library uses its mappings directly. If a page is lost, the handler
 * puts a page of zeros in its place, and the operation that met it returns DW_IO with the
 * name of the file. Zeros are never published, stored as weights, or reported as good.
 * The handler acts only on mappings of this library. For all else it calls the handler
 * that was there before.
 */
#ifndef DELTAWIRE_GUARD_H
#define DELTAWIRE_GUARD_H

#include "deltawire/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Installs the handler for SIGBUS. A second call does nothing. Call it after whatever
 * else in the process installs a handler for SIGBUS: if the handler is replaced later,
 * the library notices and works as without the guard. */
DW_API dw_status dw_guard_install(dw_error *err);

/* DW_IO, with the name of the first file that lost a page since the last call; DW_OK if
 * none did. For hosts that read mapped tensors themselves: ask after the reading. */
DW_API dw_status dw_guard_check(dw_error *err);

/* Puts the handler back that was there before, unless somebody replaced the guard's. For
 * hosts that unload the library. No other thread may be inside the library. */
DW_API void dw_guard_remove(void);

#ifdef __cplusplus
}
#endif

#endif
