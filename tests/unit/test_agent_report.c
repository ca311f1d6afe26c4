/* Reports: from many threads at once, to no agent, and without memory. */
#include <pthread.h>

#include "unit/suite.h"

#include "agent_fixture.h"
#include "failing_allocator.h"

/* ---- many threads at once ---- */

enum { N_REPORTERS = 4, N_TELLS = 300 };

static void *report_all(void *argument)
{
    const uint64_t reporter = *(const uint64_t *)argument;
    for (uint64_t i = 0; i < N_TELLS; i++) {
        const uint64_t v = N_REPORTERS * i + reporter;
        dw_rollout_step step = {.from = v,
                                .version = v + 1,
                                .n_bytes = 10 * (v + 1),
                                .n_changed = 20 * (v + 1)};
        dw_error err = {DW_UNAVAILABLE, "where", "text"};
        dw_follower_info follower = {"id", v, "host", "following", "", CREATED, {{0}}};
        tell_identity();
        dw_agent_report_head(agent, v, CREATED, "step");
        dw_agent_report_version(agent, v, CREATED);
        dw_agent_report_phase(agent, DW_PHASE_APPLY, v);
        dw_agent_report_step(agent, &step);
        tell_engine(reporter, i % 2 ? DW_ENGINE_SERVING : DW_ENGINE_AWAY);
        dw_agent_report_error(agent, i % 2 ? &err : NULL);
        dw_agent_report_followers(agent, &follower, 1);
        dw_agent_report_counts(agent, &(dw_store_counts){.n_requests = v});
        dw_agent_watched(agent);
    }
    return NULL;
}

TEST_WITH(test_many, agent_begin, agent_end)
{
    pthread_t threads[N_REPORTERS];
    uint64_t reporter[N_REPORTERS];
    for (uint64_t i = 0; i < N_REPORTERS; i++) {
        reporter[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, report_all, &reporter[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        json_t *json = agent_json("/status");
        json_t *rows = json_at(json, "history"), *row;
        size_t k;
        double last = 0;
        json_array_foreach(rows, k, row)
        {
            const double v = json_number_value(json_at(row, "version"));
            assert_true(v > last);
            expect_number(row, "bytes", 10 * v);
            expect_number(row, "bits_per_change", 4);
            last = v;
        }
        json_decref(json);
        assert_int_equal(http_get(port, "/metrics", &reply), 200);
    }
    for (int i = 0; i < N_REPORTERS; i++)
        pthread_join(threads[i], NULL);
    json_t *json = agent_json("/status");
    expect_number(json, "totals.versions", N_REPORTERS * N_TELLS);
    expect_number(json, "history.511.version", N_REPORTERS * N_TELLS);
    json_decref(json);
}

/* ---- no agent, no memory ---- */

TEST(test_null)
{
    uint64_t version;
    dw_rollout_step step = step_to(1);
    dw_agent_report_identity(NULL, &(dw_agent_identity){0});
    dw_agent_report_head(NULL, 1, CREATED, "");
    dw_agent_report_version(NULL, 1, NULL);
    dw_agent_report_phase(NULL, DW_PHASE_FETCH, 1);
    dw_agent_report_step(NULL, &step);
    dw_agent_report_engine(NULL, 0, &(dw_engine_status){0});
    dw_agent_report_commit(NULL, &(dw_version_info){0});
    dw_agent_report_error(NULL, NULL);
    dw_agent_report_verified(NULL, true);
    dw_agent_report_counts(NULL, &(dw_store_counts){0});
    dw_agent_report_followers(NULL, NULL, 0);
    assert_false(dw_agent_pinned(NULL, &version));
    assert_false(dw_agent_wait_pin(NULL, 0));
    assert_false(dw_agent_watched(NULL));
    dw_agent_stop(NULL);
}

static dw_status start_and_stop(dw_error *err)
{
    dw_agent *started;
    dw_status status = dw_agent_start(&started, &(dw_agent_options){0}, err);
    dw_agent_stop(started);
    return status;
}

TEST_WITH(test_no_memory, agent_begin, agent_end)
{
    fail_every_allocation(start_and_stop, NULL);
    dw_agent_report_head(agent, 7, CREATED, "70");
    tell_identity();
    failing_allocator none;
    failing_allocator_install(&none, 0);
    dw_agent_report_identity(agent, &(dw_agent_identity){.url = "other"});
    dw_agent_report_followers(agent, NULL, 0);
    dw_agent_report_head(agent, 8, CREATED, "80");
    dw_set_allocator(NULL);
    json_t *json = agent_json("/status");
    expect_text(json, "stream.url", "s3://bucket/run");
    expect_number(json, "head.version", 8);
    expect_text(json, "head.step", "");
    json_decref(json);
}

RUN_TESTS(NULL, NULL)
