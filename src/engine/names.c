#include "deltawire/rollout.h"

const char *dw_engine_state_name(dw_engine_state state)
{
    static const char *const names[] = {"unknown", "serving", "behind",
                                        "paused",  "broken",  "away"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "unknown";
}

const char *dw_phase_name(dw_phase phase)
{
    static const char *const names[] = {"idle",  "fetch",  "pause",
                                        "apply", "resume", "settle"};
    return (unsigned)phase < sizeof names / sizeof *names ? names[phase] : "unknown";
}
