/* Lists of companion files, and directories that they are installed in. Include after
 * cmocka.h. */
#ifndef DW_TEST_COMPANION_KIT_H
#define DW_TEST_COMPANION_KIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "unit/temp_dir.h"
#include "weights/companion_files.h"

/* The files of a version: names, which ascend, and their texts. Ends with a NULL. */
typedef struct companion_text {
    const char *name, *text;
} companion_text;

static inline dw_file_list companion_list(const companion_text *texts)
{
    dw_file_list list = {.is_given = true};
    while (texts[list.n].name)
        list.n++;
    list.items = dw_alloc_zeroed(list.n, sizeof *list.items);
    for (size_t i = 0; i < list.n; i++) {
        list.items[i].name = dw_copy_string(texts[i].name);
        list.items[i].n_bytes = strlen(texts[i].text);
        dw_sha256_of(list.items[i].sha256, texts[i].text, strlen(texts[i].text), NULL);
    }
    return list;
}

/* Plans, stages and installs, as a follower does. */
static inline dw_status companion_go(dw_companion_dir *d, const companion_text *texts,
                                     dw_companion_counts *counts, dw_error *err)
{
    dw_file_list list = companion_list(texts);
    dw_status status = dw_companion_plan(d, &list, err);
    for (size_t i = 0; status == DW_OK && i < list.n; i++)
        if (dw_companion_needs(d, i))
            status = dw_companion_stage(d, i, texts[i].text, err);
    if (status == DW_OK)
        status = dw_companion_install(d, counts, err);
    dw_file_list_release(&list);
    return status;
}

static inline dw_status companion_once(const char *dir, const companion_text *texts,
                                       dw_companion_counts *counts, dw_error *err)
{
    dw_companion_dir *d;
    dw_status status = dw_companion_dir_open(&d, dir, err);
    if (status == DW_OK)
        status = companion_go(d, texts, counts, err);
    dw_companion_dir_close(status == DW_OK || d ? d : NULL);
    return status;
}

/* Whether DIR/NAME is a regular file with this text; NULL: whether nothing is there. */
static inline bool companion_is(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, F_OK) != 0)
        return text == NULL;
    if (!text)
        return false;
    size_t n_bytes;
    uint8_t *bytes = get_file(path, &n_bytes);
    const bool same = n_bytes == strlen(text) && memcmp(bytes, text, n_bytes) == 0;
    free(bytes);
    return same;
}

#endif
