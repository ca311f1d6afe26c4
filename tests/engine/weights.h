/* The weights that the test engine serves, and the threads that serve them: each reads
 * all weights over and over and compares their digest with that of the version they are
 * to be. What is not that is a fault, and ends the process with ENGINE_FAULT.
 *
 * The engine either reads the directory in place, or holds a copy of its own that it
 * patches, as vLLM does. A directory that is read in place changes when somebody writes
 * it; the engine then counts on being paused. Until it has been told of a version for the
 * first time, and after a resume that told it of none, it holds the snapshot while it
 * reads (snapshot.h). */
#ifndef DW_ENGINE_WEIGHTS_H
#define DW_ENGINE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/digest.h"
#include "mishap.h"

enum { WHY_SIZE = 512 };

/* Waits until DIR holds a version. */
void weights_open(const char *dir, bool own_copy, unsigned n_threads);

/* When this returns no thread reads weights, and none begins to before resume. */
void weights_pause(void);
void weights_resume(void);
bool weights_paused(void);

/* The version that it was last told, or DW_NO_VERSION. */
uint64_t weights_version(void);

/* An update. False: WHY, of WHY_SIZE, says what it refuses; the weights may then be a
 * mix. */
bool weights_take_patch(const char *path, uint64_t version, dw_digest state, char *why);
bool weights_take_dir(const char *dir, uint64_t version, dw_digest state, char *why);
void weights_set_version(uint64_t version);

/* Loads a directory and takes its version, as SGLang does in one request: the version
 * changes only if the load succeeds. An engine that is not paused ends with a load that
 * failed, before anybody reads what it left. FATE: whether the load fails, and when. */
bool weights_reload(const char *dir, uint64_t version, mishap fate, char *why);

/* Leaves a mix behind, as an update that failed half way does. */
void weights_spoil(void);

/* How often all weights were read since it was told of the version. */
uint64_t weights_sweeps(void);

/* Writes them as a checkpoint. */
bool weights_dump(const char *path);

#endif
