#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>

#include "deltawire/publish.h"
#include "soak/role.h"
#include "soak/truth.h"

enum { OPENING, PUBLISHING, DONE, FAILED };

#define HANG_MS 300000

static bool append_truth(const trainer *t, const soak_model *model, uint64_t version)
{
    dw_digest each[SOAK_TENSORS], state;
    if (dw_digest_tensors(each, &state, model->tensors, SOAK_TENSORS, 1, NULL, NULL) !=
        DW_OK)
        return false;
    FILE *file = fopen(t->truth, "a");
    bool good = file && fprintf(file, "%" PRIu64 " %016" PRIx64 "\n", version, state) > 0;
    return file && fclose(file) == 0 && good;
}

static dw_status publish_one(const trainer *t, dw_publisher *publisher, soak_model *model,
                             uint64_t version, dw_error *err)
{
    char step[32];
    uint64_t ticket;
    bool done;
    dw_publish_report report = {0};
    snprintf(step, sizeof step, "%" PRIu64, version);
    soak_model_set(model, t->seed, version);
    if (!append_truth(t, model, version))
        return DW_IO;
    dw_status status = dw_publisher_publish(
        publisher, &ticket,
        &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note), .step = step}, err);
    if (status == DW_OK)
        status = dw_publisher_wait(publisher, ticket, HANG_MS, &done, &report, err);
    return status == DW_OK && report.version != version ? DW_CONFLICT : status;
}

static dw_status publish_all(trainer *t, dw_store *store, soak_model *model,
                             dw_error *err)
{
    dw_publisher *publisher;
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = t->spool;
    options.n_threads = 1;
    soak_model_set(model, t->seed, 0);
    if (!append_truth(t, model, 0))
        return DW_IO;
    dw_status status =
        dw_publisher_open(&publisher, store, model->tensors, SOAK_TENSORS, &options, err);
    if (status != DW_OK)
        return status;
    atomic_store(&t->state, PUBLISHING);
    const uint64_t begun = soak_now_ms();
    for (uint64_t v = 1; status == DW_OK && v <= t->n_versions && !t->stop; v++) {
        status = publish_one(t, publisher, model, v, err);
        while (soak_now_ms() < begun + v * t->pace_ms)
            soak_sleep_ms(1);
    }
    dw_publisher_close(publisher);
    return status;
}

static void *publish(void *context)
{
    trainer *t = context;
    soak_model model;
    dw_store *store;
    dw_error err = {0};
    soak_model_make(&model);
    dw_status status = soak_store_open(&store, t->store, &err);
    if (status == DW_OK) {
        status = publish_all(t, store, &model, &err);
        dw_store_close(store);
    }
    soak_model_free(&model);
    if (status != DW_OK)
        printf("cannot publish: %s: %s\n", dw_status_name(status), err.text);
    atomic_store(&t->state, status == DW_OK ? DONE : FAILED);
    return NULL;
}

bool trainer_start(trainer *t)
{
    if (pthread_create(&t->thread, NULL, publish, t) != 0)
        return false;
    while (atomic_load(&t->state) == OPENING)
        soak_sleep_ms(1);
    return true;
}

bool trainer_works(trainer *t)
{
    return atomic_load(&t->state) == PUBLISHING;
}

bool trainer_end(trainer *t)
{
    atomic_store(&t->stop, true);
    pthread_join(t->thread, NULL);
    return atomic_load(&t->state) == DONE;
}
