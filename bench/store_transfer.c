/* Measures how fast a store moves bytes: store_transfer URL put|get KEY BYTES REPEAT
 *
 * Writes or reads KEY-0 .. KEY-(REPEAT-1), one after another, and prints a line of JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deltawire/store.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static dw_status transfer(dw_store *store, int put, const char *key, char *bytes,
                          size_t n_bytes, dw_error *err)
{
    if (put) {
        dw_source source = {.n_bytes = n_bytes, .bytes = bytes};
        return dw_store_put(store, key, &source, DW_PUT_REPLACE, NULL, err);
    }
    size_t n_read;
    dw_status status = dw_store_get(store, key, 0, bytes, n_bytes, &n_read, NULL, err);
    if (status == DW_OK && n_read != n_bytes) {
        snprintf(err->text, sizeof err->text, "%zu bytes, not %zu", n_read, n_bytes);
        return DW_CORRUPT;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 6 || (strcmp(argv[2], "put") != 0 && strcmp(argv[2], "get") != 0)) {
        fprintf(stderr, "usage: store_transfer URL put|get KEY BYTES REPEAT\n");
        return 2;
    }
    int put = strcmp(argv[2], "put") == 0;
    size_t n_bytes = strtoull(argv[4], NULL, 10);
    size_t n_repeat = strtoull(argv[5], NULL, 10);
    char *bytes = malloc(n_bytes + 8);
    double *times = calloc(n_repeat + 1, sizeof *times);
    if (!bytes || !times || n_repeat == 0)
        return 2;
    unsigned long long x = 88172645463325252ull; /* also touches every page */
    for (size_t i = 0; i < n_bytes; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(bytes + i, &x, 8);
    }
    dw_error err = {0};
    dw_store *store;
    dw_status status = dw_store_open(&store, argv[1], NULL, &err);
    double begin = now_s();
    for (size_t i = 0; i < n_repeat && status == DW_OK; i++) {
        char key[512];
        snprintf(key, sizeof key, "%s-%zu", argv[3], i);
        double start = now_s();
        status = transfer(store, put, key, bytes, n_bytes, &err);
        times[i] = now_s() - start;
    }
    double total = now_s() - begin;
    if (status != DW_OK) {
        fprintf(stderr, "%s: %s: %s\n", dw_status_name(status), err.where, err.text);
        return 1;
    }
    dw_store_close(store);
    qsort(times, n_repeat, sizeof *times, compare);
    printf("{\"%s\": %zu, \"n\": %zu, \"seconds\": %.3f, \"median_ms\": %.2f, "
           "\"MB_per_s\": %.0f}\n",
           argv[2], n_bytes, n_repeat, total, times[n_repeat / 2] * 1e3,
           (double)(n_bytes * n_repeat) / total / 1e6);
    free(times);
    free(bytes);
    return 0;
}
