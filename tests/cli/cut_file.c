/* To be preloaded: cuts the file CUT_FILE to CUT_BYTES when the process starts its thread
 * number CUT_AT. Work on weights begins with threads, so the file is mapped by then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*start)(void *), void *argument)
{
    static atomic_int n_started;
    const char *file = getenv("CUT_FILE"), *at = getenv("CUT_AT");
    const char *n_bytes = getenv("CUT_BYTES");
    if (file && at && n_bytes && atomic_fetch_add(&n_started, 1) + 1 == atoi(at) &&
        truncate(file, atol(n_bytes)) != 0)
        abort();
    create_fn *next = (create_fn *)dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, start, argument);
}
