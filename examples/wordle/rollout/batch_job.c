#include <stdlib.h>
#include <string.h>

#include "batch.h"

batch_job *batch_job_new(size_t n)
{
    batch_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->samples = calloc(n, sizeof *job->samples);
    if (!job->samples) {
        free(job);
        return NULL;
    }
    job->n_samples = job->n_left = n;
    return job;
}

void batch_job_free(batch_job *job)
{
    if (!job)
        return;
    for (size_t i = 0; i < job->n_samples; i++) {
        free(job->samples[i].ids);
        free(job->samples[i].tokens);
        free(job->samples[i].text);
    }
    free(job->samples);
    free(job);
}

bool batch_job_prompt(batch_job *job, size_t i, const int32_t *ids, uint32_t n,
                      uint64_t rng)
{
    batch_sample *s = &job->samples[i];
    const size_t n_room = (size_t)n + job->params.max_tokens;
    s->ids = malloc(n_room * sizeof *s->ids);
    s->tokens = calloc(job->params.max_tokens, sizeof *s->tokens);
    if (!s->ids || !s->tokens)
        return false;
    memcpy(s->ids, ids, n * sizeof *ids);
    s->n_ids = s->n_prompt = n;
    s->rng = rng;
    s->job = job;
    return true;
}

uint64_t batch_sample_version(const batch_sample *s)
{
    uint64_t oldest = DW_NO_VERSION;
    for (uint32_t i = 0; i < s->n_ids - s->n_prompt; i++)
        if (s->tokens[i].version < oldest)
            oldest = s->tokens[i].version;
    return oldest;
}
