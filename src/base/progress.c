#include "base/progress.h"

#include <stddef.h>

static int report_share(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_total;
    const dw_share *share = context;
    return share->whole->report(share->whole->context, share->before + bytes_done,
                                share->total);
}

dw_progress dw_share_hook(dw_share *share)
{
    const int watched = share->whole && share->whole->report;
    return (dw_progress){watched ? report_share : NULL, share};
}
