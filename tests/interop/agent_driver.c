/* A follower's agent with reports of every kind, for test_metrics.py and for looking at
 * the page. Prints its URL, and ends at the end of its standard input. */
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"

#define CREATED "2026-11-15T05:20:59.123Z"

static void report_all(dw_agent *agent)
{
    const dw_follower_info follower = {"other",   40,      "host", "error",
                                       "no room", CREATED, {{0}}};
    const dw_error err = {DW_UNAVAILABLE, "s3://bucket/run", "failed after 5 tries"};
    dw_agent_report_identity(agent, &(dw_agent_identity){.url = "s3://bucket/run",
                                                         .stream = "0123456789abcdef",
                                                         .id = "host-1",
                                                         .dir = "/models/run",
                                                         .n_tensors = 10,
                                                         .n_elems = 1000000,
                                                         .n_bytes = 2000000});
    for (uint64_t v = 1; v <= 42; v++) {
        dw_version_info commit = {.version = v,
                                  .content = DW_CONTENT_DELTA,
                                  .created = CREATED,
                                  .n_changed = 9000 + 13 * v,
                                  .n_objects = 1,
                                  .n_bytes = 8000 + 7 * v};
        dw_rollout_step step = {.from = v - 1,
                                .version = v,
                                .n_objects = 1,
                                .n_bytes = 8000 + 7 * v,
                                .n_changed = 9000 + 13 * v,
                                .fetch_us = 90 * v * v,
                                .decode_us = 1000 + 40 * v,
                                .pause_us = 300 + v,
                                .scatter_us = 120 * v,
                                .update_us = 5000 + v,
                                .resume_us = 200,
                                .finish_us = 30000 + 100 * v,
                                .stopped_us = 6000 + 121 * v};
        if (v <= 20)
            dw_agent_report_commit(agent, &commit);
        else
            dw_agent_report_step(agent, &step);
    }
    dw_agent_report_head(agent, 45, CREATED, "450");
    dw_agent_report_version(agent, 42, CREATED);
    dw_agent_report_phase(agent, DW_PHASE_FETCH, 43);
    for (size_t i = 0; i < 6; i++)
        dw_agent_report_engine(agent, i,
                               &(dw_engine_status){.driver = "vllm",
                                                   .where = "http://a\\b\"c\n:8000",
                                                   .state = (dw_engine_state)i,
                                                   .version = i % 2 ? 42 : DW_NO_VERSION,
                                                   .software = "vLLM 0.32.0"});
    dw_agent_report_verified(agent, true);
    dw_agent_report_error(agent, &err);
    dw_agent_report_counts(agent, &(dw_store_counts){.n_requests = 1234,
                                                     .n_retries = 5,
                                                     .bytes_read = 1 << 30,
                                                     .bytes_written = 1 << 10});
    dw_agent_report_followers(agent, &follower, 1);
}

int main(int argc, char **argv)
{
    dw_agent *agent;
    dw_error err;
    dw_agent_options options = {0};
    options.stream_only = argc > 1 && strcmp(argv[1], "--stream") == 0;
    if (dw_agent_start(&agent, &options, &err) != DW_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
        return 1;
    }
    report_all(agent);
    puts(dw_agent_url(agent));
    fflush(stdout);
    while (getchar() != EOF)
        ;
    dw_agent_stop(agent);
    return 0;
}
