/* Objects as short texts, and the error of the last call, for tests of stores. */
#ifndef TESTS_UNIT_STORE_TEXT_H
#define TESTS_UNIT_STORE_TEXT_H

#include <string.h>

#include "store/store.h"

static dw_error err;

static inline dw_status put(dw_store *to, const char *key, const char *text,
                            dw_put_mode mode)
{
    return dw_store_put_bytes(to, key, text, strlen(text), mode, &err);
}

/* A whole object as text. */
static inline dw_status get(dw_store *from, const char *key, char text[100])
{
    size_t n = 0;
    dw_status status = dw_store_get(from, key, 0, text, 99, &n, NULL, &err);
    text[n] = '\0';
    return status;
}

/* For dw_store_list: the keys, each with a space behind it. */
static inline dw_status append(void *context, const dw_store_entry *entry,
                               dw_error *error)
{
    (void)error;
    strcat(context, entry->key);
    strcat(context, " ");
    return DW_OK;
}

#endif
