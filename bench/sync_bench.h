/* Shared by the measurements of `make bench-sync`. Each is a verb of one program and runs
 * in a process of its own. It prints lines of JSON, and ends the process if something
 * fails. */
#ifndef DW_BENCH_SYNC_H
#define DW_BENCH_SYNC_H

#include <deltawire/follow.h>
#include <deltawire/publish.h>

#include "synth.h"

void sync_check(dw_status status, const dw_error *err);
void sync_die(const char *problem);

dw_store *sync_open_store(const char *url);

/* A synthetic run of bf16 weights, N_BYTES of them, 1 % of which change at each step. The
 * same in every process. */
synth_run *sync_new_run(uint64_t n_bytes);

/* Publishes the weights and waits for the commit. */
dw_publish_report sync_publish(dw_publisher *publisher);

void sync_drain(dw_publisher *publisher);

/* A follower of weights in memory; IS_EMPTY if they hold no version yet. */
dw_follower *sync_open_follower(dw_store *store, const dw_tensor *tensors,
                                size_t n_tensors, bool is_empty);

/* The verbs. ARGS are what follows the verb; their number has been checked. */
void sync_trace_publish(char **args);
void sync_trace_pull(char **args);
void sync_late_join(char **args);
void sync_link_trainer(char **args);
void sync_link_follower(char **args);
void sync_memory_publish(char **args);
void sync_memory_follow(char **args);
void sync_upkeep(char **args);

#endif
