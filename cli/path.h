#ifndef CLI_PATH_H
#define CLI_PATH_H

/* DIR/NAME on the heap, or NULL. */
char *cli_path_join(const char *dir, const char *name);

/* The directory that PATH stands in, on the heap, or NULL. */
char *cli_path_parent(const char *path);

#endif
