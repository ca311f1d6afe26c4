/* A few threads that stay, and share out the tasks of one loop at a time. */
#ifndef WORDLE_QWEN_THREADS_H
#define WORDLE_QWEN_THREADS_H

#include <stddef.h>

#include <deltawire/deltawire.h>

typedef struct qwen_pool qwen_pool;

/* N_THREADS counts the caller, who works too; 0: all cores. Each thread owns
 * SCRATCH_BYTES of memory. */
dw_status qwen_pool_new(qwen_pool **out, unsigned n_threads, size_t scratch_bytes,
                        dw_error *err);
void qwen_pool_free(qwen_pool *pool);

/* Does TASK of the N_TASKS that run_tasks shares out. SCRATCH is the thread's own,
 * aligned to 64 bytes. */
typedef void qwen_task(void *context, size_t task, void *scratch);

/* Runs all tasks and returns when they are done. N_FLOPS is their total cost: for little
 * work no thread is woken. */
void qwen_pool_run(qwen_pool *pool, size_t n_tasks, double n_flops, qwen_task *task,
                   void *context);

#endif
