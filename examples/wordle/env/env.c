/* wordle-env: the environment. It plays games over HTTP, and does not depend on models.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "env_routes.h"
#include "program.h"

static const char help[] =
    "wordle-env plays Wordle over HTTP, any number of games at once.\n"
    "\n"
    "    wordle-env [--listen HOST:PORT] [--words FILE] [--answers N] [--max-games N]\n"
    "\n"
    "  --listen HOST:PORT  where; port 0 is any that is free (127.0.0.1:8100)\n"
    "  --words FILE        one word of five letters a line, in place of its own list\n"
    "  --answers N         only N of the words, spread over the list, are answers\n"
    "  --max-games N       that are kept at once (65536); idle ones go after 10 minutes\n"
    "\n"
    "Once it listens it says so in a line: listening on http://127.0.0.1:8100\n"
    "It ends on SIGTERM or SIGINT. Exit status: 0, 1 after a failure, 2 for wrong use.\n"
    "\n"
    "Example:\n"
    "    wordle-env &\n"
    "    curl -d '{\"seed\":7}' http://127.0.0.1:8100/games\n"
    "    curl -d '{\"text\":\"crane\"}' http://127.0.0.1:8100/games/ID/guess\n";

typedef struct arguments {
    const char *listen, *words;
    size_t n_answers, max_games;
} arguments;

static void parse(arguments *a, int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"words", required_argument, NULL, 'w'},
        {"answers", required_argument, NULL, 'a'},
        {"max-games", required_argument, NULL, 'm'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case 'l':
            a->listen = optarg;
            break;
        case 'w':
            a->words = optarg;
            break;
        case 'a':
            a->n_answers = program_number("--answers", optarg, 1, MAX_WORDS);
            break;
        case 'm':
            a->max_games = program_number("--max-games", optarg, 1, 1 << 20);
            break;
        case 'h':
            fputs(help, stdout);
            exit(0);
        default:
            exit(2);
        }
    if (optind < argc) {
        fprintf(stderr, "wordle-env: '%s' is not understood; --help\n", argv[optind]);
        exit(2);
    }
}

static dw_status serve(const arguments *a, games *g, dw_error *err)
{
    web *server;
    dw_status status = web_start(&server, a->listen, ENV_MAX_BODY, env_answer, g, err);
    if (status != DW_OK)
        return status;
    printf("listening on %s\n", web_url(server));
    fflush(stdout);
    program_wait();
    web_stop(server);
    return DW_OK;
}

int main(int argc, char **argv)
{
    arguments a = {.listen = "127.0.0.1:8100", .max_games = 65536};
    dw_error err;
    words list;
    games g;
    parse(&a, argc, argv);
    program_block_signals();
    dw_status status = words_open(&list, a.words, &err);
    if (status != DW_OK)
        return program_fail("wordle-env", &err);
    status = games_init(&g, &list, a.n_answers, a.max_games, &err);
    if (status == DW_OK)
        status = serve(&a, &g, &err);
    games_release(&g);
    words_release(&list);
    return status == DW_OK ? 0 : program_fail("wordle-env", &err);
}
