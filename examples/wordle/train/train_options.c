#include "train_options.h"

#include <stdio.h>
#include <stdlib.h>

#include "options.h"
#include "program.h"

static const char help[] =
    "usage: wordle-train --init DIR [--hidden N] [--layers N] [--seed N]\n"
    "       wordle-train --model DIR --store URL --state DIR --env URL --server URL...\n"
    "\n"
    "Trains a small Qwen3 to play Wordle, and publishes every step as a version of the\n"
    "stream at the store. Guesses are sampled by rollout servers that follow the "
    "stream,\n"
    "games are judged by the environment; samples are taken as they come, with the\n"
    "versions that they were sampled with (asynchronous GRPO). Started again with the\n"
    "same --state and --store it continues.\n"
    "\n"
    "  --init DIR        make a model there: config, tokenizer, random weights; and end\n"
    "  --hidden N        its width (64), a multiple of 8\n"
    "  --layers N        its layers (2)\n"
    "\n"
    "  --model DIR       config.json, tokenizer.json and the weights to begin with\n"
    "  --store URL       of the stream: file:///DIR, s3://BUCKET/PREFIX, hf://...\n"
    "  --state DIR       masters, moments and the copy of the newest version\n"
    "  --env URL         wordle-env\n"
    "  --server URL      wordle-rollout; again for further ones\n"
    "  --metrics FILE    append a line of JSON for each step (default: print it)\n"
    "\n"
    "  --warmup N        supervised steps on random games first (300)\n"
    "  --steps N         steps of reinforcement learning (400)\n"
    "  --groups N        groups of games a step (8)\n"
    "  --games N         games of a group, for the same answer (8)\n"
    "  --players N       groups that are played at once (4)\n"
    "  --max-lag N       drop samples that are more steps old (8)\n"
    "  --lr X            learning rate of reinforcement learning (4e-4)\n"
    "  --warmup-lr X     of the warm-up (3e-3)\n"
    "  --threads N       of the trainer; 0: all cores (1)\n"
    "  --save-every N    save the state each so many steps (20)\n"
    "  --seed N          of games and warm-up (1)\n"
    "  --no-sync         publish nothing after the warm-up, to see what that costs\n"
    "  --evaluate N      play N groups with the last weights, which are published (0)\n"
    "\n"
    "Examples:\n"
    "  wordle-train --init /tmp/tiny\n"
    "  wordle-train --model /tmp/tiny --store s3://bucket/wordle --state /var/tmp/train "
    "\\\n"
    "      --env http://127.0.0.1:8100 --server http://10.0.0.7:8000 \\\n"
    "      --server http://10.0.0.8:8000 --metrics train.jsonl\n";

static float rate(const char *option, const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x > 0) || !(x < 1)) {
        fprintf(stderr, "wordle-train: --%s takes a number between 0 and 1, not '%s'\n",
                option, text);
        exit(2);
    }
    return (float)x;
}

enum {
    INIT = 1,
    HIDDEN,
    LAYERS,
    MODEL,
    STORE,
    STATE,
    ENV,
    SERVER,
    METRICS,
    WARMUP,
    STEPS,
    GROUPS,
    GAMES,
    PLAYERS,
    MAX_LAG,
    LR,
    WARMUP_LR,
    THREADS,
    SAVE_EVERY,
    SEED,
    NO_SYNC,
    EVALUATE,
};

static const struct option table[] = {
    {"init", required_argument, NULL, INIT},
    {"hidden", required_argument, NULL, HIDDEN},
    {"layers", required_argument, NULL, LAYERS},
    {"model", required_argument, NULL, MODEL},
    {"store", required_argument, NULL, STORE},
    {"state", required_argument, NULL, STATE},
    {"env", required_argument, NULL, ENV},
    {"server", required_argument, NULL, SERVER},
    {"metrics", required_argument, NULL, METRICS},
    {"warmup", required_argument, NULL, WARMUP},
    {"steps", required_argument, NULL, STEPS},
    {"groups", required_argument, NULL, GROUPS},
    {"games", required_argument, NULL, GAMES},
    {"players", required_argument, NULL, PLAYERS},
    {"max-lag", required_argument, NULL, MAX_LAG},
    {"lr", required_argument, NULL, LR},
    {"warmup-lr", required_argument, NULL, WARMUP_LR},
    {"threads", required_argument, NULL, THREADS},
    {"save-every", required_argument, NULL, SAVE_EVERY},
    {"seed", required_argument, NULL, SEED},
    {"no-sync", no_argument, NULL, NO_SYNC},
    {"evaluate", required_argument, NULL, EVALUATE},
    OPTIONS_END,
};

static void take_path(train_options *o, const command_line *line, int option)
{
    switch (option) {
    case INIT:
        o->init_dir = optarg;
        break;
    case MODEL:
        o->model_dir = optarg;
        break;
    case STORE:
        o->store = optarg;
        break;
    case STATE:
        o->state_dir = optarg;
        break;
    case ENV:
        o->env = optarg;
        break;
    case METRICS:
        o->metrics = optarg;
        break;
    case SERVER:
        if (o->n_servers == PLAYERS_MAX_SERVERS)
            options_wrong(line, "there are too many --server");
        o->servers[o->n_servers++] = optarg;
        break;
    default:
        break;
    }
}

static void take_number(train_options *o, int option)
{
    const char *name = table[option - 1].name;
    switch (option) {
    case HIDDEN:
        o->n_hidden = (unsigned)program_number(name, optarg, 8, 4096);
        break;
    case LAYERS:
        o->n_layers = (unsigned)program_number(name, optarg, 1, 64);
        break;
    case WARMUP:
        o->n_warmup = program_number(name, optarg, 0, 1000000);
        break;
    case STEPS:
        o->n_steps = program_number(name, optarg, 0, 1000000);
        break;
    case GROUPS:
        o->n_groups = program_number(name, optarg, 1, 1024);
        break;
    case GAMES:
        o->n_games = program_number(name, optarg, 2, GROUP_MAX_GAMES);
        break;
    case PLAYERS:
        o->n_players = program_number(name, optarg, 1, PLAYERS_MAX_THREADS);
        break;
    case MAX_LAG:
        o->max_lag = program_number(name, optarg, 0, 1000000);
        break;
    case THREADS:
        o->n_threads = (unsigned)program_number(name, optarg, 0, 256);
        break;
    case SAVE_EVERY:
        o->save_every = program_number(name, optarg, 1, 1000000);
        break;
    case EVALUATE:
        o->n_evaluate = program_number(name, optarg, 0, 1024);
        break;
    case SEED:
        o->seed = program_number(name, optarg, 0, UINT32_MAX);
        break;
    case LR:
        o->lr = rate(name, optarg);
        break;
    case WARMUP_LR:
        o->warmup_lr = rate(name, optarg);
        break;
    default:
        break;
    }
}

train_options train_options_read(int argc, char **argv)
{
    train_options o = {
        .n_hidden = 64,
        .n_layers = 2,
        .n_warmup = 300,
        .n_steps = 400,
        .n_groups = 8,
        .n_games = 8,
        .n_players = 4,
        .max_lag = 8,
        .warmup_lr = 3e-3f,
        .lr = 4e-4f,
        .n_threads = 1,
        .save_every = 20,
        .seed = 1,
    };
    const command_line line = {"wordle-train", help, table, argc, argv};
    int option;
    while ((option = options_next(&line)) != -1) {
        o.no_sync = o.no_sync || option == NO_SYNC;
        take_path(&o, &line, option);
        take_number(&o, option);
    }
    if (o.init_dir && o.n_hidden % 8 != 0)
        options_wrong(&line, "--hidden takes a multiple of 8");
    if (!o.init_dir &&
        !(o.model_dir && o.store && o.state_dir && o.env && o.n_servers > 0))
        options_wrong(&line, "--model, --store, --state, --env and --server are needed");
    return o;
}
