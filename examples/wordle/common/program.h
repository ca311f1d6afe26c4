/* Shared by the programs of this example: errors, options, signals, time, random numbers.
 */
#ifndef WORDLE_PROGRAM_H
#define WORDLE_PROGRAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <deltawire/deltawire.h>

/* Fills ERR, if it is not NULL, and returns CODE. WHERE names the file or object. */
__attribute__((format(printf, 4, 5))) dw_status
wordle_fail(dw_error *err, dw_status code, const char *where, const char *format, ...);

/* ---- options ---- */

/* --NAME. Exactly one of the targets is set. */
typedef struct program_option {
    const char *name;
    const char **text; /* takes the value */
    bool *flag;        /* there is no value */
    uint64_t *number;  /* takes a number in MIN to MAX */
    uint64_t min, max;
    void (*each)(const char *value); /* is called for each one given */
} program_option;

/* Reads the command line into the targets of the N options. --help prints HELP and ends
 * the program; an error ends it with status 2. */
void program_options(const char *program, const char *help, const program_option *options,
                     size_t n, int argc, char **argv);

/* Prints the error and ends the program with status 2. */
_Noreturn void program_misused(const char *program, const char *what);

/* Prints the error on standard error; returns the exit status 1. */
int program_fail(const char *program, const dw_error *err);

/* ---- signals ---- */

/* From now on the functions below handle SIGTERM, SIGINT and SIGHUP (unless it is
 * ignored, as by nohup); SIGPIPE is ignored. Call it before the first thread is made. */
void program_block_signals(void);

/* Waits for one of them. */
void program_wait(void);

/* Whether one came or comes within WAIT_MS; consumes it. */
bool program_take_end(unsigned wait_ms);

/* ---- time and random numbers ---- */

/* Milliseconds of a clock that only goes forward. */
uint64_t program_clock_ms(void);

/* A condition whose timed waits end by that clock, and an end for them. */
void program_cond_init(pthread_cond_t *cond);
struct timespec program_deadline(unsigned ms);

/* A number nobody can guess. */
uint64_t program_random(void);

/* The next random number of STATE, which may be any number (splitmix64). */
uint64_t program_next_random(uint64_t *state);

#endif
