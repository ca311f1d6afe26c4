/* What the programs of this example have in common: options, signals, messages. */
#ifndef WORDLE_PROGRAM_H
#define WORDLE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include <deltawire/deltawire.h>

/* The number of an option in MIN to MAX; ends the program with 2 where it is none. */
uint64_t program_number(const char *option, const char *text, uint64_t min, uint64_t max);

/* Says where and why on standard error; returns the exit status 1. */
int program_fail(const char *program, const dw_error *err);

/* SIGTERM, SIGINT and SIGHUP (unless it is ignored, as by nohup) wait for those below
 * from now on; SIGPIPE is ignored. Call it before the first thread is made. */
void program_block_signals(void);

/* Until one of them comes. */
void program_wait(void);

/* Whether one came, or comes within WAIT_MS; takes it. */
bool program_take_end(unsigned wait_ms);

/* Whether one came; leaves it there. */
bool program_is_to_end(void);

/* Milliseconds of a clock that only goes forward. */
uint64_t program_clock_ms(void);

/* A number nobody can guess. */
uint64_t program_random(void);

/* The next number of a sequence that STATE, any number, stands for (splitmix64). */
uint64_t program_next_random(uint64_t *state);

#endif
