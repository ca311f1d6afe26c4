/* Opening checkpoints.
 *
 * Tensors point into the maps. The file may shrink, so read them as base/map.h describes.
 */
#include "tensor/checkpoint.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensor/safetensors.h"
#include "tensor/shard_index.h"
#include "tensor/tensor_list.h"
#include "inner.h"

typedef struct shard {
    char *path;
    dw_map map;
    dw_safetensors file;
} shard;

struct dw_checkpoint {
    shard *shards;
    size_t n_shards;
    dw_tensor *tensors; /* of all shards, by name; the shards own their text */
    size_t n_tensors;
    char *index_path; /* or NULL */
    bool writable;
};

/* ---- from a path to a file ------------------------------------------------ */

/* Sets *OUT to DIR/NAME if that exists, else to NULL. */
static dw_status find_in_directory(char **out, const char *dir, const char *name,
                                   dw_error *err)
{
    *out = dw_join_path(dir, name);
    if (!*out)
        return dw_fail_memory(err, dir);
    struct stat st;
    if (stat(*out, &st) != 0) {
        dw_free(*out);
        *out = NULL;
    }
    return DW_OK;
}

/* The number of shards in a name like model-00001-of-00030.safetensors; 1 for other
 * names. */
static unsigned long count_shards(const char *name)
{
    const char *of = NULL;
    for (const char *at = name; (at = strstr(at, "-of-")) != NULL; at++)
        of = at;
    if (!of || of == name || !isdigit((unsigned char)of[-1]) ||
        !isdigit((unsigned char)of[4]))
        return 1;
    char *end;
    unsigned long n = strtoul(of + 4, &end, 10);
    return strcmp(end, ".safetensors") == 0 ? n : 1;
}

static bool is_torch_name(const char *name)
{
    return dw_name_ends(name, ".pt") || dw_name_ends(name, ".pth") ||
           (strncmp(name, "pytorch_model", 13) == 0 && dw_name_ends(name, ".bin"));
}

/* Sets *OUT to the only .safetensors file in the directory. */
static dw_status find_only_file(char **out, const char *dir, dw_error *err)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return dw_fail_errno(err, dir, "read the directory");
    dw_status status = DW_OK;
    size_t n_found = 0;
    unsigned long n_shards = 1;
    bool has_torch = false, has_gguf = false;
    *out = NULL;
    errno = 0;
    for (struct dirent *entry; status == DW_OK && (entry = readdir(stream)); errno = 0) {
        has_torch |= is_torch_name(entry->d_name);
        has_gguf |= dw_name_ends(entry->d_name, ".gguf");
        if (!dw_name_ends(entry->d_name, ".safetensors") || ++n_found > 1)
            continue;
        n_shards = count_shards(entry->d_name);
        *out = dw_join_path(dir, entry->d_name);
        if (!*out)
            status = dw_fail_memory(err, dir);
    }
    if (status == DW_OK && errno != 0)
        status = dw_fail_errno(err, dir, "read the directory");
    else if (status == DW_OK && n_found == 0 && has_torch)
        status = dw_fail(err, DW_UNSUPPORTED, dir,
                         "the weights there are files of PyTorch. " DW_CONVERT_TORCH);
    else if (status == DW_OK && n_found == 0 && has_gguf)
        status =
            dw_fail(err, DW_UNSUPPORTED, dir, "it holds a GGUF file. " DW_CONVERT_GGUF);
    else if (status == DW_OK && n_found == 0)
        status = dw_fail(err, DW_NOT_FOUND, dir,
                         "the directory holds no checkpoint: no .safetensors file");
    else if (status == DW_OK && n_found > 1)
        status = dw_fail(err, DW_INVALID, dir,
                         "the directory holds %zu .safetensors files and no index: name "
                         "one of them",
                         n_found);
    else if (status == DW_OK && n_shards > 1)
        status = dw_fail(err, DW_NOT_FOUND, dir,
                         "the directory holds one of %lu shards, and no index", n_shards);
    closedir(stream);
    if (status != DW_OK) {
        dw_free(*out);
        *out = NULL;
    }
    return status;
}

/* The file to open for PATH: PATH itself, or the file in a directory. */
static dw_status resolve(char **out, const char *path, dw_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return dw_fail_errno(err, path, "open");
    if (!S_ISDIR(st.st_mode)) {
        *out = dw_copy_string(path);
        return *out ? DW_OK : dw_fail_memory(err, path);
    }
    dw_status status = find_in_directory(out, path, DW_SHARD_INDEX_NAME, err);
    if (status == DW_OK && !*out)
        status = find_in_directory(out, path, "model.safetensors", err);
    if (status == DW_OK && !*out)
        status = find_only_file(out, path, err);
    return status;
}

/* ---- shards ----------------------------------------------------------------- */

/* Opens the file as the next shard. Owns PATH, which may be NULL if the caller could not
 * allocate it. */
static dw_status add_shard(dw_checkpoint *ckpt, char *path, dw_error *err)
{
    if (!path)
        return dw_fail_memory(err, NULL);
    shard *s = &ckpt->shards[ckpt->n_shards++];
    *s = (shard){.path = path, .map = {.fd = -1}};
    dw_status status = dw_map_open(&s->map, path, ckpt->writable, err);
    if (status == DW_OK)
        status = dw_safetensors_map(&s->file, &s->map, path, err);
    return status;
}

static dw_status open_single(dw_checkpoint *ckpt, const char *path, dw_error *err)
{
    ckpt->shards = dw_alloc(sizeof *ckpt->shards);
    if (!ckpt->shards)
        return dw_fail_memory(err, path);
    return add_shard(ckpt, dw_copy_string(path), err);
}

static dw_status open_shards(dw_checkpoint *ckpt, const dw_shard_index *index,
                             const char *dir, dw_error *err)
{
    ckpt->shards = dw_alloc_array(index->n_files, sizeof *ckpt->shards);
    if (!ckpt->shards)
        return dw_fail_memory(err, dir);
    for (size_t i = 0; i < index->n_files; i++) {
        dw_status status = add_shard(ckpt, dw_join_path(dir, index->files[i]), err);
        if (status != DW_OK)
            return status;
        const shard *s = &ckpt->shards[i];
        status = dw_shard_index_check_file(index, index->files[i], s->file.tensors,
                                           s->file.n_tensors, s->path, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

/* ---- tensors of all shards -------------------------------------------------- */

static dw_status merge_tensors(dw_checkpoint *ckpt, const char *path, dw_error *err)
{
    size_t n_tensors = 0;
    for (size_t i = 0; i < ckpt->n_shards; i++)
        n_tensors += ckpt->shards[i].file.n_tensors;
    ckpt->tensors = dw_alloc_array(n_tensors, sizeof *ckpt->tensors);
    if (!ckpt->tensors)
        return dw_fail_memory(err, path);
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        const dw_safetensors *file = &ckpt->shards[i].file;
        memcpy(ckpt->tensors + ckpt->n_tensors, file->tensors,
               file->n_tensors * sizeof *file->tensors);
        ckpt->n_tensors += file->n_tensors;
    }
    qsort(ckpt->tensors, n_tensors, sizeof *ckpt->tensors, dw_tensor_compare_names);
    return DW_OK;
}

/* Finds a name of the index that is in no shard. The reverse was checked before: every
 * tensor of a shard is in the index. */
static dw_status check_complete(const dw_checkpoint *ckpt, const dw_shard_index *index,
                                const char *path, dw_error *err)
{
    for (size_t i = 0; i < index->n_entries; i++) {
        const dw_shard_entry *e = &index->entries[i];
        if (!dw_checkpoint_find(ckpt, e->name))
            return dw_fail_tensor(err, DW_CORRUPT, path, e->name,
                                  "the index places it in '%s', which does not hold it",
                                  e->file);
    }
    return DW_OK;
}

static dw_status open_index(dw_checkpoint *ckpt, const char *path, dw_error *err)
{
    ckpt->index_path = dw_copy_string(path);
    if (!ckpt->index_path)
        return dw_fail_memory(err, path);
    dw_shard_index index;
    dw_status status = dw_shard_index_read(&index, path, err);
    if (status != DW_OK)
        return status;
    char *dir = dw_parent_path(path);
    if (dir)
        status = open_shards(ckpt, &index, dir, err);
    else
        status = dw_fail_memory(err, path);
    if (status == DW_OK)
        status = merge_tensors(ckpt, path, err);
    if (status == DW_OK)
        status = check_complete(ckpt, &index, path, err);
    dw_free(dir);
    dw_shard_index_release(&index);
    return status;
}

static dw_status open_file(dw_checkpoint *ckpt, const char *path, dw_error *err)
{
    if (dw_name_ends(path, ".json"))
        return open_index(ckpt, path, err);
    dw_status status = open_single(ckpt, path, err);
    if (status == DW_OK)
        status = merge_tensors(ckpt, path, err);
    return status;
}

/* ---- public functions -------------------------------------------------------- */

dw_status dw_checkpoint_open(dw_checkpoint **out, const char *path, unsigned flags,
                             dw_error *err)
{
    *out = NULL;
    if (flags & ~(unsigned)DW_CHECKPOINT_WRITE)
        return dw_fail(err, DW_INVALID, path, "unknown flags 0x%x", flags);
    char *file = NULL;
    dw_status status = resolve(&file, path, err);
    if (status != DW_OK)
        return status;
    dw_checkpoint *ckpt = dw_alloc_zeroed(1, sizeof *ckpt);
    if (ckpt) {
        ckpt->writable = flags & DW_CHECKPOINT_WRITE;
        status = open_file(ckpt, file, err);
    } else {
        status = dw_fail_memory(err, path);
    }
    dw_free(file);
    if (status == DW_OK)
        *out = ckpt;
    else
        dw_checkpoint_close(ckpt);
    return status;
}

void dw_checkpoint_close(dw_checkpoint *ckpt)
{
    if (!ckpt)
        return;
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        shard *s = &ckpt->shards[i];
        dw_safetensors_release(&s->file);
        dw_map_close(&s->map);
        dw_free(s->path);
    }
    dw_free(ckpt->shards);
    dw_free(ckpt->tensors);
    dw_free(ckpt->index_path);
    dw_free(ckpt);
}

const dw_tensor *dw_checkpoint_tensors(const dw_checkpoint *ckpt, size_t *n_tensors)
{
    *n_tensors = ckpt->n_tensors;
    return ckpt->tensors;
}

const dw_tensor *dw_checkpoint_find(const dw_checkpoint *ckpt, const char *name)
{
    dw_tensor wanted = {.name = name};
    return bsearch(&wanted, ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors,
                   dw_tensor_compare_names);
}

size_t dw_checkpoint_file_count(const dw_checkpoint *ckpt)
{
    return ckpt->n_shards;
}

const char *dw_checkpoint_file(const dw_checkpoint *ckpt, size_t i)
{
    return i < ckpt->n_shards ? ckpt->shards[i].path : NULL;
}

int dw_checkpoint_fd(const dw_checkpoint *ckpt, size_t i)
{
    return ckpt->shards[i].map.fd;
}

const char *dw_checkpoint_index(const dw_checkpoint *ckpt)
{
    return ckpt->index_path;
}

const char *dw_checkpoint_metadata(const dw_checkpoint *ckpt, const char *key)
{
    if (ckpt->n_shards == 0)
        return NULL;
    return dw_safetensors_metadata(&ckpt->shards[0].file, key);
}

dw_status dw_checkpoint_reserve(dw_checkpoint *ckpt, dw_error *err)
{
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        dw_status status =
            dw_map_reserve(&ckpt->shards[i].map, ckpt->shards[i].path, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

dw_status dw_checkpoint_check(const dw_checkpoint *ckpt, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < ckpt->n_shards; i++)
        status = dw_map_check(&ckpt->shards[i].map, err);
    return status;
}

uint64_t dw_checkpoint_identity(const dw_checkpoint *ckpt)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        const uint64_t number = dw_file_identity(ckpt->shards[i].map.fd, "");
        hash = i == 0 ? number : XXH64(&number, sizeof number, hash);
    }
    return hash;
}

uint64_t dw_checkpoint_frame(const dw_checkpoint *ckpt)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        const shard *s = &ckpt->shards[i];
        uint8_t bytes[16384];
        struct stat st = {0};
        (void)fstat(s->map.fd, &st);
        hash = XXH64(&st.st_size, sizeof st.st_size, hash);
        for (uint64_t at = 0, left; (left = s->file.data_start - at) > 0;) {
            const ssize_t n = pread(s->map.fd, bytes,
                                    left < sizeof bytes ? left : sizeof bytes, (off_t)at);
            if (n <= 0)
                break; /* the size says so too */
            hash = XXH64(bytes, (size_t)n, hash);
            at += (uint64_t)n;
        }
    }
    return hash;
}

dw_status dw_checkpoint_sync(dw_checkpoint *ckpt, dw_error *err)
{
    if (!ckpt->writable)
        return DW_OK;
    for (size_t i = 0; i < ckpt->n_shards; i++) {
        shard *s = &ckpt->shards[i];
        dw_status status = dw_map_sync(&s->map, s->path, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}
