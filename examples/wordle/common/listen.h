/* A socket that listens. */
#ifndef WORDLE_LISTEN_H
#define WORDLE_LISTEN_H

#include <deltawire/deltawire.h>

enum { LISTEN_URL_BYTES = 128 };

/* TEXT is HOST:PORT or [IPV6]:PORT; port 0 is any free one. URL takes the address. */
dw_status listen_open(int *fd, char url[LISTEN_URL_BYTES], const char *text,
                      dw_error *err);

#endif
