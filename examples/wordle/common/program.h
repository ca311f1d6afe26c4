/* Shared by the programs of this example: options, signals, messages. */
#ifndef WORDLE_PROGRAM_H
#define WORDLE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include <deltawire/deltawire.h>

/* The number of an option in MIN to MAX; ends the program with 2 if it is invalid. */
uint64_t program_number(const char *option, const char *text, uint64_t min, uint64_t max);

/* Prints the error on standard error; returns the exit status 1. */
int program_fail(const char *program, const dw_error *err);

/* From now on the functions below handle SIGTERM, SIGINT and SIGHUP (unless it is
 * ignored, as by nohup); SIGPIPE is ignored. Call it before the first thread is made. */
void program_block_signals(void);

/* Waits for one of them. */
void program_wait(void);

/* Whether one came or comes within WAIT_MS; consumes it. */
bool program_take_end(unsigned wait_ms);

/* Whether one came; does not consume it. */
bool program_is_to_end(void);

/* Milliseconds of a clock that only goes forward. */
uint64_t program_clock_ms(void);

/* A number nobody can guess. */
uint64_t program_random(void);

/* The next random number of STATE, which may be any number (splitmix64). */
uint64_t program_next_random(uint64_t *state);

#endif
