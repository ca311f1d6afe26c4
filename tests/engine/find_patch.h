/* The file of a patch that a follower left in its directory. */
#ifndef TESTS_ENGINE_FIND_PATCH_H
#define TESTS_ENGINE_FIND_PATCH_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Its path below DIR; false if there is none. */
static inline bool find_patch(char out[PATH_MAX], const char *dir)
{
    bool found = false;
    DIR *entries = opendir(dir);
    for (struct dirent *e; entries && !found && (e = readdir(entries));) {
        char path[PATH_MAX], magic[8] = "";
        struct stat st;
        const int n = snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (n >= (int)sizeof path || strcmp(e->d_name, ".") == 0 ||
            strcmp(e->d_name, "..") == 0 || stat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            found = find_patch(out, path);
            continue;
        }
        FILE *file = fopen(path, "rb");
        found =
            file && fread(magic, 1, 8, file) == 8 && memcmp(magic, "DWPATCH1", 8) == 0;
        if (found)
            strcpy(out, path);
        if (file)
            fclose(file);
    }
    if (entries)
        closedir(entries);
    return found;
}

#endif
