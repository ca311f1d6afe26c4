/* For larger programs: an allocator, own objects in a store, keys, kept
 * digests and devices.
 *
 *     embed
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deltawire/deltawire.h>

/* ---- memory: how many blocks the library holds ---- */

static long n_blocks;

static void *allocate(void *context, size_t n_bytes)
{
    long *n = context;
    void *block = malloc(n_bytes);
    __atomic_add_fetch(n, block != NULL, __ATOMIC_RELAXED);
    return block;
}

static void *reallocate(void *context, void *block, size_t n_bytes)
{
    long *n = context;
    void *moved = realloc(block, n_bytes);
    __atomic_add_fetch(n, !block && moved, __ATOMIC_RELAXED);
    return moved;
}

static void release(void *context, void *block)
{
    long *n = context;
    __atomic_sub_fetch(n, block != NULL, __ATOMIC_RELAXED);
    free(block);
}

/* ---- weights in a file that other programs may change ---- */

static const uint64_t dims[] = {4};
static float weights[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
static const dw_tensor model[] = {
    {"a", DW_F32, 1, dims, sizeof weights[0], weights[0], 0, NULL},
    {"b", DW_F32, 1, dims, sizeof weights[1], weights[1], 0, NULL}};

static dw_status read_file(const char *path, dw_error *err)
{
    dw_checkpoint *ckpt;
    size_t n;
    double sum = 0;
    dw_status status = dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 4; k++)
            sum += ((const float *)tensors[i].data)[k];
    status = dw_checkpoint_check(ckpt,
                                 err); /* only now it is certain that the data was good */
    dw_checkpoint_close(ckpt);
    if (status == DW_OK)
        printf("the weights add up to %g\n", sum);
    return status;
}

/* An optimizer changed one tensor: its digest is computed again, the others are kept. */
static dw_status keep_digests(dw_error *err)
{
    dw_digest digests[2], before, after;
    dw_status status = dw_digest_tensors(digests, &before, model, 2, 1, NULL, err);
    weights[1][0] = 9;
    digests[1] = dw_digest_bytes(weights[1], sizeof weights[1]);
    after = dw_digest_state(model, digests, 2);
    if (status == DW_OK)
        printf("state %016llx, then %016llx\n", (unsigned long long)before,
               (unsigned long long)after);
    return status;
}

/* Weights on a graphics processor: the address of a tensor is one of the device's, and
 * `device` says so. Most machines have none. */
static void find_device(void)
{
    dw_device *device;
    dw_error why;
    if (dw_device_open(&device, "cuda:0", &why) == DW_OK)
        printf("tensors may be on %s\n", dw_device_name(device));
    else
        printf("tensors are on the host: %s\n", why.text);
    dw_device_close(device);
}

/* ---- own objects in a store ---- */

static dw_status put_note(dw_store *store, const char *text, dw_error *err)
{
    static const char key[] = "notes/first.txt";
    const dw_source source = {.bytes = text, .n_bytes = strlen(text)};
    if (!dw_store_key_valid(key))
        return DW_INVALID;
    return dw_store_put(store, key, &source, DW_PUT_CREATE, NULL, err);
}

static dw_status use_store(dw_error *err)
{
    dw_store *store = NULL;
    bool is_safe = false;
    dw_status status = dw_store_open(&store, "mem:embed", NULL, err);
    if (status == DW_OK)
        status = dw_store_conditional(store, &is_safe, err);
    if (status == DW_OK)
        status = put_note(store, "hello", err);
    if (status == DW_OK)
        printf("stored; two writers %s\n",
               is_safe ? "cannot create one object" : "must be kept apart");
    dw_store_close(store);
    return status;
}

/* ---- everything, in a temporary directory ---- */

static dw_status run(const char *dir, dw_error *err)
{
    char path[256], text[DW_PUBLIC_KEY_TEXT];
    uint8_t ours[DW_PUBLIC_KEY_BYTES], told[DW_PUBLIC_KEY_BYTES];
    bool pending = true;
    dw_sign_key *key = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    dw_status status = dw_checkpoint_write(path, model, 2, NULL, err);
    if (status == DW_OK)
        status = read_file(path, err);
    if (status == DW_OK) /* whether a follower would write at once: engines must pause */
        status = dw_follower_pending(dir, &pending, err);
    unlink(path);
    snprintf(path, sizeof path, "%s/key", dir);
    if (status == DW_OK)
        status = dw_sign_key_create(path, text, err);
    if (status == DW_OK)
        status = dw_sign_key_open(&key, path, err);
    unlink(path);
    if (status == DW_OK)
        status = dw_public_key_read(told, text, err);
    if (status == DW_OK) {
        dw_sign_key_public(key, ours);
        printf("followers trust %s; %s, and nothing is pending: %s\n", text,
               memcmp(ours, told, sizeof ours) == 0 ? "it is this key"
                                                    : "it is another key",
               pending ? "no" : "yes");
    }
    dw_sign_key_close(key);
    if (status == DW_OK)
        status = keep_digests(err);
    find_device();
    return status == DW_OK ? use_store(err) : status;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s\n", argv[0]);
        return is_help ? 0 : 2;
    }
    char dir[] = "/tmp/deltawire-embed-XXXXXX";
    dw_error err = {0};
    dw_set_allocator(&(dw_allocator){allocate, reallocate, release, &n_blocks});
    dw_status status = mkdtemp(dir) ? run(dir, &err) : DW_IO;
    rmdir(dir);
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", *err.where ? err.where : dir, err.text);
    printf("%ld blocks are still allocated\n", n_blocks);
    return status == DW_OK && n_blocks == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
