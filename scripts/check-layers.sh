#!/bin/sh
# Refuses an #include from a lower layer: CONTRIBUTING.md, "Layers". A folder of src/
# that is not in the list is refused too, so that a new layer takes its place in it.
set -eu
cd "$(dirname "$0")/../src"

grep -rHE '^[[:space:]]*#[[:space:]]*include "' --include='*.[ch]' --include='*.inc' . |
    awk -F '[:"]' '
        BEGIN {
            n = split("base kernel tensor codec layout net store stream weights follow publish compat engine agent cuda", list, " ")
            for (i = 1; i <= n; i++) rank[list[i]] = i
        }
        {
            split($1, file, "/")  # ./codec/delta.c
            split($3, header, "/")  # base/bytes.h
            if (header[1] == "deltawire" || header[2] == "") next  # public, or beside it
            if (!(file[2] in rank) || !(header[1] in rank) || rank[header[1]] > rank[file[2]]) {
                print "src/" substr($1, 3) " includes " $3
                bad = 1
            }
        }
        END { exit bad }'
