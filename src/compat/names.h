/* The keys of a version's objects in each format. */
#ifndef DW_COMPAT_NAMES_H
#define DW_COMPAT_NAMES_H

#include "compat/peer.h"
#include "stream/record.h"

#define DW_TRL_ANCHORS "anchors/step_"
#define DW_TRL_DELTAS  "deltas/step_"
#define DW_SLIME_NAMES "weight_v"

/* The key of a version's object; for TRL that of its anchor, or of its delta. */
void dw_peer_key(char out[DW_KEY_TEXT], dw_peer_format format, uint64_t version,
                 bool is_anchor);

/* The inverse. False if KEY is no such object, or writes its number in another way. */
bool dw_peer_key_version(dw_peer_format format, const char *key, uint64_t *version);

/* Whether NAME is a valid file name beside an index: a key without a path. */
bool dw_peer_name_is_plain(const char *name);

#endif
