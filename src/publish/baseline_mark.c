/* The mark of a baseline: a file that shows that the directory belongs to a publisher,
 * and at which version all of it was last compared with the stream.
 *
 * If the weights in a directory with a mark are damaged, the publisher makes them again.
 * A directory without a mark may hold a user's weights, and is never changed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "codec/seal.h"
#include "publish/publisher.h"
#include "weights/own_dir.h"

#define NAME      ".deltawire/baseline"
#define FORMAT    "deltawire-baseline/1"
#define MAX_BYTES 4096

/* The version that the mark names for STREAM, or DW_NO_VERSION. */
static uint64_t parse(const uint8_t *bytes, size_t n_bytes, const char *stream)
{
    dw_json *root = NULL;
    uint64_t proven = DW_NO_VERSION;
    if (!dw_seal_good(bytes, n_bytes, NULL, 0) ||
        dw_json_read(&root, bytes, n_bytes, "mark", NULL, NULL) != DW_OK)
        return proven;
    const char *of = dw_json_string(dw_json_get(root, "stream"));
    uint64_t version;
    if (of && strcmp(of, stream) == 0 &&
        dw_json_unsigned(dw_json_get(root, "proven"), &version))
        proven = version;
    dw_json_free(root);
    return proven;
}

bool dw_mark_read(const char *dir, const char *stream, uint64_t *proven)
{
    *proven = DW_NO_VERSION;
    bool exists = false;
    uint8_t *bytes = NULL;
    size_t n_bytes;
    char *path = dw_join_path(dir, NAME);
    if (path && dw_own_dir_check(dir, NULL) == DW_OK &&
        dw_file_exists(path, &exists, NULL) == DW_OK && exists &&
        dw_read_file(&bytes, &n_bytes, path, MAX_BYTES, NULL) == DW_OK)
        *proven = parse(bytes, n_bytes, stream);
    dw_free(bytes);
    dw_free(path);
    return exists;
}

dw_status dw_mark_write(const char *dir, const char *stream, uint64_t proven,
                        dw_error *err)
{
    dw_writer w = {0};
    dw_status status = dw_own_dir_make(dir, err);
    if (status != DW_OK)
        return status;
    dw_write_format(&w, "{\"format\":\"" FORMAT "\",\"stream\":\"%s\"", stream);
    if (proven != DW_NO_VERSION)
        dw_write_format(&w, ",\"proven\":%" PRIu64, proven);
    return dw_seal_write(&w, dir, NAME, err);
}

/* DIR.of-STREAM-TIME on the heap, without slashes at DIR's end. */
static char *name_aside(const char *dir, const char *stream)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    dw_writer w = {0};
    dw_write_format(&w, "%.*s.of-%s-%" PRIu64, (int)n, dir, stream, dw_clock_ms());
    dw_write_u8(&w, 0);
    char *name = w.failed ? NULL : dw_copy_string((const char *)w.bytes);
    dw_writer_release(&w);
    return name;
}

dw_status dw_mark_set_aside(const char *dir, const char *stream, dw_error *err)
{
    dw_position at, next;
    dw_record_kind kind;
    if (dw_position_read(&at, &next, &kind, dir, NULL) != DW_OK ||
        at.version == DW_NO_VERSION || strcmp(at.stream, stream) == 0)
        return DW_OK;
    char *aside = name_aside(dir, at.stream);
    dw_status status = aside ? DW_OK : dw_fail_memory(err, dir);
    if (status == DW_OK && (rename(dir, aside) != 0 || mkdir(dir, 0777) != 0))
        status = dw_fail(err, DW_CONFLICT, dir,
                         "it is the baseline of stream %s, which is not the one that is "
                         "published, and it cannot be moved to %s: %s. Remove it, or "
                         "name another directory",
                         at.stream, aside, strerror(errno));
    dw_free(aside);
    return status;
}
