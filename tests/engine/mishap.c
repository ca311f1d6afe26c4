#include "mishap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "soak/truth.h"

static mishap_rates rates;
static atomic_bool calm;

static unsigned n_spell; /* updates still to fail; only for the thread that answers */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static uint64_t luck;

void mishap_begin(uint64_t seed, const mishap_rates *given)
{
    rates = *given;
    luck = seed;
}

void mishap_calm(void)
{
    atomic_store(&calm, true);
}

static uint64_t below(uint64_t n)
{
    pthread_mutex_lock(&lock);
    uint64_t drawn = soak_below(&luck, n);
    pthread_mutex_unlock(&lock);
    return drawn;
}

void mishap_point(unsigned weight)
{
    if (!atomic_load(&calm) && below(1000ull * weight) < rates.deaths) {
        static const char line[] = "the engine dies by plan\n";
        if (write(STDERR_FILENO, line, sizeof line - 1) > 0)
            _exit(DEATH_BY_PLAN);
        _exit(DEATH_BY_PLAN);
    }
}

mishap mishap_of_request(void)
{
    if (atomic_load(&calm))
        return MISHAP_NONE;
    if (below(1000) < rates.delays)
        dw_sleep_ms(below(20));
    if (rates.long_ms > 0 && below(1000) < rates.long_delays)
        dw_sleep_ms(rates.long_ms);
    uint64_t drawn = below(1000);
    return drawn < 5ull * rates.failures ? (mishap)(1 + drawn / rates.failures)
                                         : MISHAP_NONE;
}

mishap mishap_of_update(mishap fate)
{
    if (atomic_load(&calm))
        return fate;
    bool begins = fate == MISHAP_FAIL_AFTER && n_spell == 0;
    if (begins)
        n_spell = (unsigned)below(8);
    else if (n_spell > 0) {
        n_spell--;
        return below(2) ? MISHAP_FAIL_BEFORE : MISHAP_FAIL_AFTER;
    }
    return fate;
}
