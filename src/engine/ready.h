/* Engines that prepare a patch while they serve (vLLM with our back end). */
#ifndef DW_ENGINE_READY_H
#define DW_ENGINE_READY_H

#include <stdbool.h>

/* Waits until every engine that watches DIR has done what it can before it pauses for the
 * file PATCH. Each has a file DIR/.deltawire/engine-*, which it locks as long as it
 * lives, with inode, size and time of the last patch it is done with. Returns false if
 * that took longer than LIMIT_MS. Removes the files of engines that have ended. */
bool dw_engines_ready(const char *dir, const char *patch, unsigned limit_ms);

#endif
