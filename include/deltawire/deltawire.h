/* libdeltawire keeps inference engines on the trainer's newest weights. It moves only the
 * elements that changed, exact to the bit.
 *
 * Headers, in the order to read them. They change only in ways that keep programs
 * compiling and running.
 *
 *     base.h          status codes and errors, progress, the version of the library
 *     tensor.h        element types, tensors and their digests; tensors on a GPU
 *     delta.h         the changes between two versions
 *     checkpoint.h    safetensors files and directories
 *     store.h         places for objects: directory, S3, Hugging Face
 *     stream.h        the versions of a model in a store; keys that sign them, and the
 *                     small files that they carry
 *     publish.h       writing versions: the trainer's side; quantising to fp8 or int8
 *     control.h       the version of a mapped directory, for programs without the library
 *     follow.h        getting versions: the engine's side; reading what it gets
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
 * handle is opened with (a store, a key) are borrowed until it is closed. A close or
 * free function takes NULL.
 *
 * Progress. Where there is one, it is among the options, or the argument before the
 * report and the error. It may be NULL.
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
#include "deltawire/tensor.h"
#include "deltawire/base.h"
#include "deltawire/stream.h"
#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "deltawire/store.h"

#endif
