/* The command line of wordle-train. */
#ifndef WORDLE_TRAIN_OPTIONS_H
#define WORDLE_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "player.h"

typedef struct train_options {
    const char *init_dir; /* --init: only make a model there */
    unsigned n_hidden;
    unsigned n_layers;

    const char *model_dir;
    const char *store;
    const char *state_dir;
    const char *env;
    const char *servers[PLAYERS_MAX_SERVERS];
    size_t n_servers;
    const char *metrics;

    uint64_t n_warmup; /* steps */
    uint64_t n_steps;  /* of reinforcement learning */
    size_t n_groups;   /* of a step */
    size_t n_games;    /* of a group */
    size_t n_players;
    uint64_t max_lag; /* versions */
    float warmup_lr;
    float lr;
    unsigned n_threads;
    uint64_t save_every; /* steps */
    size_t n_evaluate;   /* groups */
    uint64_t seed;
    bool no_sync;
} train_options;

/* Ends the program with 0 after --help, with 2 after an error. */
train_options train_options_read(int argc, char **argv);

#endif
