/* libdeltawire keeps inference engines on the trainer's newest weights. It moves only the
 * elements that changed, exact to the bit.
 *
 * Headers, in the order to read them. Stable headers change only in ways that keep
 * programs compiling and running. Experimental headers can change with any release.
 *
 *     error.h         stable         status codes and the error record
 *     tensor.h        stable         element types and tensors
 *     device.h        experimental   tensors in the memory of a GPU
 *     checkpoint.h    stable         safetensors files and directories
 *     progress.h      stable         watching and stopping long work
 *     digest.h        stable         the digests of tensors and models
 *     delta.h         stable         the changes between two versions
 *     store.h         stable         places for objects: directory, S3, Hugging Face
 *     sign.h          stable         keys that sign versions
 *     stream.h        stable         the versions of a model in a store
 *     files.h         experimental   the small files that versions carry
 *     quantize.h      experimental   weights that are published as fp8 or int8
 *     publish.h       stable         writing versions: the trainer's side
 *     follow.h        stable         getting versions: the engine's side
 *     control.h       stable         the version of a mapped directory
 *     snapshot.h      stable         reading a directory that a follower updates
 *     version.h       stable         the version of the library
 *
 * These rules hold in all of them.
 *
 * Structs that callers fill. Options, notes and driver tables begin with `struct_bytes`,
 * the size of the struct that the program was compiled with. dw_X_init(&x) sets it, and
 * sets every other member to its default. A program may also write
 * `dw_X x = {.struct_bytes = sizeof x, .member = ...}`; the members that it leaves out
 * are then 0. The library reads only struct_bytes, so a program goes on working with a
 * later library that has more members. It returns DW_INVALID if struct_bytes is not set,
 * and DW_UNSUPPORTED if members are set that it does not know. OPTIONS may be NULL: all
 * defaults. Other structs (dw_tensor, dw_progress, dw_trust, ...) never grow.
 *
 * Structs that the library fills. Reports end with `reserved` members, which are 0. Later
 * versions use them for new members.
 *
 * Ownership. If a function fails, *OUT is NULL, and everything that it was given stays
 * the caller's. Options and the strings in them are borrowed for the call. Handles that a
 * handle is opened with (a store, a peer) are borrowed until it is closed. A close or
 * free function takes NULL.
 *
 * Progress. A function with options has `progress` among them if it can take long. A
 * function without options takes a dw_progress before its report and error. It may be
 * NULL.
 *
 * Threads. `n_threads` is the number of threads that a function may use; 0 means one for
 * each core. A handle belongs to one thread at a time if its header does not say
 * otherwise.
 *
 * Versions. DW_NEWEST asks for the newest version. DW_NO_VERSION means that there is
 * none.
 */
#ifndef DELTAWIRE_H
#define DELTAWIRE_H

#include "deltawire/checkpoint.h"
#include "deltawire/control.h"
#include "deltawire/delta.h"
#include "deltawire/device.h"
#include "deltawire/digest.h"
#include "deltawire/error.h"
#include "deltawire/files.h"
#include "deltawire/follow.h"
#include "deltawire/progress.h"
#include "deltawire/publish.h"
#include "deltawire/quantize.h"
#include "deltawire/sign.h"
#include "deltawire/snapshot.h"
#include "deltawire/store.h"
#include "deltawire/stream.h"
#include "deltawire/tensor.h"
#include "deltawire/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels in use: "plain", "avx2", "avx512" or "neon". The library picks the best
 * that the machine has. The environment variable DELTAWIRE_KERNEL names another. */
DW_API const char *dw_kernel_name(void);

/* Functions in place of malloc, realloc and free. Results must be aligned as malloc's. */
typedef struct dw_allocator {
    void *(*allocate)(void *context, size_t n_bytes);
    void *(*reallocate)(void *context, void *pointer, size_t n_bytes);
    void (*release)(void *context, void *pointer);
    void *context;
} dw_allocator;

/* Sets the functions for what the library allocates itself; NULL restores the defaults.
 * jansson, zstd and the other libraries that it uses keep their own. Call it before any
 * other function. examples/embed.c shows this, and other calls for larger programs. */
DW_API void dw_set_allocator(const dw_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
