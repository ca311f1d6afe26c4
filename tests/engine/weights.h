/* The weights that the test engine serves, and the threads that serve them. Each thread
 * reads all weights over and over, and compares their digest with the version's. If they
 * differ, the process ends with ENGINE_FAULT.
 *
 * The engine either reads the directory in place, or has a copy of its own that it
 * patches, as vLLM does. If it reads in place, it relies on being paused whenever the
 * directory is written. Before its first update, and after a pause without an update, it
 * holds the snapshot while it reads (snapshot.h). */
#ifndef DW_ENGINE_WEIGHTS_H
#define DW_ENGINE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/tensor.h"
#include "mishap.h"

enum { WHY_SIZE = 512 };

/* Waits until DIR holds a version. */
void weights_open(const char *dir, bool own_copy, unsigned n_threads);

/* When this returns, no thread reads weights, and none will before a resume. */
void weights_pause(void);
void weights_resume(void);
bool weights_paused(void);

/* The version of the last update, or DW_NO_VERSION. */
uint64_t weights_version(void);

/* Updates. False: WHY, of WHY_SIZE, has the reason, and the weights may be a mix. */
bool weights_take_patch(const char *path, uint64_t version, dw_digest state, char *why);
bool weights_take_dir(const char *dir, uint64_t version, dw_digest state, char *why);
void weights_set_version(uint64_t version);

/* From now on it names no version; the weights stay. */
void weights_drop_version(void);

/* It names VERSION again, or is as after its start. A fault if the weights are others. */
void weights_restore_version(uint64_t version);

/* weights_version, and whether it was dropped. */
uint64_t weights_label(bool *is_dropped);

/* Whether it has a copy. */
bool weights_are_own(void);

/* Loads a directory and takes its version, as SGLang does in one request: the version
 * changes only if the load succeeds. An engine that is not paused ends with a load that
 * failed, before anybody reads what it left. FATE: whether the load fails, and when. */
bool weights_reload(const char *dir, uint64_t version, mishap fate, char *why);

/* Makes the weights a mix, like an update that failed half way. */
void weights_spoil(void);

/* How often all weights were read since the last update. */
uint64_t weights_sweeps(void);

/* Writes them as a checkpoint. */
bool weights_dump(const char *path);

#endif
