#!/bin/sh
# Refuses #includes that the layers do not allow (docs/DESIGN.md, section 1):
#
#     src/LAYER       its own headers, and those of the layers before it in the list below
#     bench           its own, and all of src
#     cli             its own, those of bench, src/base, and the interfaces of other layers
#                     that are not public (`inner` below)
#     python/src      its own, and those interfaces
#     examples        its own
#
# weights/target_inside.h, the inside of a target, is only for src/weights and bench.
# Public headers may be included anywhere, and src/inner.h anywhere but in examples. A
# folder of src that is not in the list is refused too, so that a new layer must be added
# to it.
set -eu
cd "$(dirname "$0")/.."

{
    find cli bench python/src examples -name '*.h' -o -name '*.inc'
    grep -rHE '^[[:space:]]*#[[:space:]]*include [<"]' --include='*.[ch]' --include='*.inc' \
        src cli bench python/src examples
} | awk -F '[:<">]' '
    BEGIN {
        n = split("base kernel tensor quant codec layout net store stream weights follow publish formats engine agent cuda", list, " ")
        for (i = 1; i <= n; i++) rank[list[i]] = i
        n = split("agent/agent.h engine/engine.h engine/rollout.h layout/layout.h formats/formats.h cuda/cuda.h weights/position.h", list, " ")
        for (i = 1; i <= n; i++) inner[list[i]] = 1
        uses["cli"] = "cli bench"
        uses["bench"] = "bench"
        uses["python"] = "python"
        uses["examples"] = "examples"
    }
    function is_beside(top, name,    n, i, list) { # a header of a folder that TOP uses
        n = split(uses[top], list, " ")
        for (i = 1; i <= n; i++) if ((list[i] "/" name) in own) return 1
        return 0
    }
    function is_allowed(path, name, quoted,    file, header) {
        split(path, file, "/")
        split(name, header, "/")
        if (header[1] == "deltawire") return 1
        if (name == "inner.h") return file[1] != "examples"
        if (!quoted && !(header[1] in rank)) return 1 # of the system
        if (name == "weights/target_inside.h" && file[1] == "src" && file[2] != "weights") return 0
        if (header[2] == "") return file[1] == "src" || is_beside(file[1], name)
        if (!(header[1] in rank)) return 0
        if (file[1] == "src") return file[2] in rank && rank[header[1]] <= rank[file[2]]
        if ((file[1] == "cli" || file[1] == "python") && name in inner) return 1
        return file[1] == "bench" || (file[1] == "cli" && header[1] == "base")
    }
    NF == 1 {
        n = split($0, part, "/")
        own[part[1] "/" part[n]] = 1
        next
    }
    !is_allowed($1, $3, $0 ~ /include "/) {
        print $1 " includes " $3
        bad = 1
    }
    END { exit bad }'
