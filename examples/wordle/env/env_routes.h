/* The HTTP interface of the environment: see README.md. */
#ifndef WORDLE_ENV_ROUTES_H
#define WORDLE_ENV_ROUTES_H

#include "games.h"
#include "web.h"

enum { ENV_MAX_BODY = 64 << 10, ENV_MAX_NEW = 1024 };

/* A web_handler; CONTEXT is the games. */
void env_answer(void *context, web_call *call);

#endif
