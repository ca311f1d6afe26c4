/* A store from the command line, only with the public header:
 *
 *     store_tool put URL KEY FILE         store_tool list URL [PREFIX]
 *     store_tool create URL KEY FILE      store_tool remove URL KEY
 *     store_tool get URL KEY FILE
 *
 * The server of s3:// is DW_TEST_S3_ENDPOINT. Exits with the dw_status of the failed
 * call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/store.h"

static dw_error err;

static int say_errno(const char *path)
{
    perror(path);
    return 100;
}

static dw_status read_file(void *context, uint64_t offset, void *into, size_t n_bytes,
                           dw_error *error)
{
    FILE *file =
        fopen(context, "rb"); /* opened for each read, because several threads read */
    bool read = file != NULL && fseek(file, (long)offset, SEEK_SET) == 0 &&
                fread(into, 1, n_bytes, file) == n_bytes;
    if (file != NULL)
        fclose(file);
    if (!read)
        *error = (dw_error){.code = DW_IO, .text = "the file cannot be read"};
    return read ? DW_OK : DW_IO;
}

static int put(dw_store *store, const char *key, char *path, dw_put_mode mode)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return say_errno(path);
    long n_bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    fclose(file);
    if (n_bytes < 0)
        return say_errno(path);
    dw_source source = {.n_bytes = (uint64_t)n_bytes, .read = read_file, .context = path};
    return (int)dw_store_put(store, key, &source, mode, NULL, &err);
}

static int get(dw_store *store, const char *key, const char *path)
{
    uint64_t n_bytes;
    dw_status status = dw_store_stat(store, key, &n_bytes, NULL, &err);
    if (status != DW_OK)
        return (int)status;
    size_t n_read = 0;
    char *bytes = malloc((size_t)n_bytes + 1);
    FILE *file = bytes != NULL ? fopen(path, "wb") : NULL;
    int failed = file == NULL ? say_errno(path) : 0;
    if (!failed)
        failed =
            (int)dw_store_get(store, key, 0, bytes, (size_t)n_bytes, &n_read, NULL, &err);
    if (!failed && fwrite(bytes, 1, n_read, file) != n_read)
        failed = say_errno(path);
    if (file != NULL && fclose(file) != 0 && !failed)
        failed = say_errno(path);
    free(bytes);
    return failed;
}

static dw_status print_entry(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)context;
    (void)error;
    printf("%llu %s\n", (unsigned long long)entry->n_bytes, entry->key);
    return DW_OK;
}

static int run(dw_store *store, int argc, char **argv)
{
    const char *verb = argv[1];
    if (strcmp(verb, "list") == 0)
        return (int)dw_store_list(store, argc > 3 ? argv[3] : "", NULL, print_entry, NULL,
                                  &err);
    if (strcmp(verb, "remove") == 0 && argc == 4)
        return (int)dw_store_remove(store, argv[3], &err);
    if (strcmp(verb, "put") == 0 && argc == 5)
        return put(store, argv[3], argv[4], DW_PUT_REPLACE);
    if (strcmp(verb, "create") == 0 && argc == 5)
        return put(store, argv[3], argv[4], DW_PUT_CREATE);
    if (strcmp(verb, "get") == 0 && argc == 5)
        return get(store, argv[3], argv[4]);
    fprintf(stderr, "store_tool: no such verb, or not its arguments: %s\n", verb);
    return 101;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr,
                "usage: store_tool put|create|get|remove|list URL [KEY [FILE]]\n");
        return 101;
    }
    dw_store_options options = {.struct_bytes = sizeof options,
                                .endpoint = getenv("DW_TEST_S3_ENDPOINT")};
    dw_store *store = NULL;
    int failed = (int)dw_store_open(&store, argv[2], &options, &err);
    if (!failed)
        failed = run(store, argc, argv);
    if (failed && failed < 100)
        fprintf(stderr, "%s: %s: %s\n", dw_status_name(err.code), err.where, err.text);
    dw_store_close(store);
    return failed;
}
