/* What every header needs: status codes and the error record, the version, progress,
 * allocators.
 *
 * Every function that can fail returns a dw_status. If the caller passes a dw_error and
 * the function fails, it fills the record. ERR may be NULL. The record belongs to the
 * caller, and the library keeps no error state of its own, so any thread may use any
 * record.
 */
#ifndef DELTAWIRE_BASE_H
#define DELTAWIRE_BASE_H

#include <stddef.h>
#include <stdint.h>

/* The library exports only the functions that are marked with DW_API. */
#if defined(__GNUC__)
#define DW_API __attribute__((visibility("default")))
#else
#define DW_API
#endif

#define DW_VERSION_MAJOR  0
#define DW_VERSION_MINOR  2
#define DW_VERSION_PATCH  0
#define DW_VERSION_STRING "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

/* The code shows what the caller can do about the error. New codes are appended. */
typedef enum dw_status {
    DW_OK = 0,
    DW_NO_MEMORY,   /* an allocation failed; nothing was changed, except by a diff that
                       updates its base */
    DW_IO,          /* the operating system refused a read, write or map */
    DW_NOT_FOUND,   /* the file, tensor or object is not there */
    DW_CORRUPT,     /* the bytes break their own format: fetch them again */
    DW_STALE,       /* the weights are not the version this delta starts from, or what was
                       read changed meanwhile */
    DW_MISMATCH,    /* the two sides are not the same model */
    DW_UNSUPPORTED, /* well formed, but beyond what this build or codec can do */
    DW_INVALID,     /* the caller's own argument is wrong */
    DW_CONFLICT,    /* somebody else holds the object, or made it first */
    DW_CANCELLED,   /* the caller's progress function asked to stop */
    DW_UNAVAILABLE, /* not now: the store could not be reached, has no such bucket or kept
                       failing, or a wait was too long. Try later */
    DW_DENIED,      /* the store refused the credentials, or they may not do this */
    DW_UNTRUSTED, /* a signature is missing, foreign or wrong, or history was rewritten */
    DW_NOT_FINITE, /* a weight is NaN or infinite, and has no quantised value */
} dw_status;

#define DW_ERROR_WHERE_SIZE 512
#define DW_ERROR_TEXT_SIZE  1024

typedef struct dw_error {
    dw_status code;
    char where[DW_ERROR_WHERE_SIZE]; /* the file, tensor or object; may be empty */
    char text[DW_ERROR_TEXT_SIZE];   /* one line for people; control bytes are escaped */
} dw_error;

/* The longest line of dw_error_line, with its NUL. */
#define DW_ERROR_LINE_SIZE (DW_ERROR_WHERE_SIZE + DW_ERROR_TEXT_SIZE + 2)

/* Writes the error as one line, "WHERE: TEXT", or "TEXT" if it names no place. Returns
 * OUT. */
DW_API const char *dw_error_line(const dw_error *err, char out[DW_ERROR_LINE_SIZE]);

/* A short fixed name of the code, for logs and JSON: "corrupt", "stale", ... */
DW_API const char *dw_status_name(dw_status code);

/* ---- long work ---- */

/* The library calls REPORT now and then, from the thread that called it and under no
 * lock. REPORT may be NULL. Any result but 0 stops the operation with DW_CANCELLED. What
 * it has done by then stays and is whole; a diff that updates its base is the exception.
 */
typedef struct dw_progress {
    int (*report)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *context;
} dw_progress;

/* ---- the library ---- */

/* The version of the library that is loaded. It can be later than the header's. */
DW_API const char *dw_version(void);

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
