/* Weights on devices: how a publish reads them.
 *
 * A publish starts the comparison on the caller's thread, and lets the caller's streams
 * wait for it. The publisher's thread waits for it too: then the version is captured. It
 * encodes afterwards, from lists that the devices keep.
 *
 * So a publish first waits until the publisher's thread has nothing to do, and if the
 * baseline is lost it lets it catch up. If the version is a restart, which reads the
 * weights once more, the publish waits until that is done.
 *
 * Owner: the owner of the baseline; `hold` is called under the publisher's lock while
 * there is none.
 */
#ifndef DW_PUBLISH_CAPTURE_H
#define DW_PUBLISH_CAPTURE_H

#include "codec/encode.h"
#include "deltawire/publish.h"
#include "publish/pieces.h"
#include "tensor/device.h"

typedef struct dw_captured_device {
    dw_device *device;
    dw_device_capture *capture;
} dw_captured_device;

typedef struct dw_captures {
    dw_captured_device *items;
    size_t n;           /* 0: all weights are in the memory of the host */
    bool has_host;      /* some of them are */
    size_t *owner;      /* [pieces.cut.n] the item of each piece */
    size_t *number;     /* [pieces.cut.n] and its number there */
    bool is_held;       /* the job under way was compared with ... */
    uint64_t moves;     /* ... the baseline as it was then */
    size_t group_first; /* the piece that a group begins with */
} dw_captures;

/* Once the baseline is connected. */
dw_status dw_captures_open(dw_publisher *p, dw_error *err);
void dw_captures_close(dw_captures *captures);

/* Starts to compare, and holds the streams that NOTE names, or the default ones. */
dw_status dw_captures_hold(dw_publisher *p, const dw_publish_note *note, dw_error *err);
/* Waits until the weights were compared, if they are held. */
dw_status dw_captures_wait(dw_publisher *p, dw_error *err);
/* Whether the weights were compared with the baseline as it is now. */
bool dw_captures_are_current(const dw_publisher *p);
/* DW_STALE if they were not. */
dw_status dw_captures_check(const dw_publisher *p, dw_error *err);
dw_status dw_captures_encode(dw_publisher *p, dw_error *err);
/* What was encoded, for the pieces from FIRST on. Good until the next call. */
dw_encode_capture dw_captures_of_group(dw_captures *captures, size_t first);
/* The version is made, or failed. */
void dw_captures_end(dw_publisher *p);

#endif
