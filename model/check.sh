#!/bin/sh
# Checks model/stream.pml with spin: the protocol as it is must hold in every
# interleaving, and each variant with a rule broken must be found out.
#
#     model/check.sh [PATTERN]      all runs, or those whose line matches PATTERN
#
# One line a run; the last is 'N passed, N failed'. Exit status 77 where spin or a C
# compiler is missing. A trace of a fault: spin -t -p -g FLAGS stream.pml in the folder
# that DW_MODEL_DIR names, which is then kept.
set -eu
model=$(cd "$(dirname "$0")" && pwd)
pattern=${1:-}
cc=${CC:-cc}

for tool in spin "$cc"; do
    command -v "$tool" >/dev/null || {
        echo "model: no $tool, skipped (scripts/install-deps.sh test brings it)"
        exit 77
    }
done

if [ -n "${DW_MODEL_DIR:-}" ]; then
    mkdir -p "$DW_MODEL_DIR"
    scratch=$DW_MODEL_DIR
else
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
fi
cd "$scratch"

passed=0 failed=0

# What the search found: holds, a fault by its kind, or why there is no answer.
verdict() {
    if grep -q '^pan:1: assertion violated' out; then
        echo "assertion"
    elif grep -q '^pan:1: non-progress cycle' out; then
        echo "no progress"
    elif grep -q '^pan:1: invalid end state' out; then
        echo "deadlock"
    elif grep -q 'errors: 0' out && ! grep -qE 'not completed|max search depth' out; then
        echo "holds"
    else
        echo "no answer: $(head -n 1 out | cut -c 1-60)"
    fi
}

check() { # EXPECTED PROPERTY FLAG... ; PROPERTY is safety or progress
    expected=$1 property=$2
    shift 2
    line="$property $*"
    [ -z "$pattern" ] || echo "$expected $line" | grep -e "$pattern" >/dev/null || return 0
    # Faults are found early: for them the compiler would take longer than the search.
    if [ "$expected" = holds ]; then optimize=-O1; else optimize=-O0; fi
    case $property in
    safety) how=-DSAFETY options= ;;
    progress) how=-DNP options=-l ;;
    esac
    rm -f pan* out ./*.trail
    found="does not build"
    if spin -a "$@" "$model/stream.pml" >out 2>&1 &&
        "$cc" $optimize -w "$how" -DMEMLIM=1800 -o pan pan.c >out 2>&1; then
        # shellcheck disable=SC2086 # a word or none
        ./pan -m100000 $options >out 2>&1 || true
        found=$(verdict)
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out)
    if [ "$found" = "$expected" ]; then
        passed=$((passed + 1)) word=ok
    else
        failed=$((failed + 1)) word=FAILED
    fi
    printf '%-6s %-11s %9s states  %s\n' "$word" "$found" "${states:-0}" "$line"
}

one="-DCOLLECT -DWRITERS=1 -DVERSIONS=2"
alone="$one -DNO_FOLLOWER"
gone="-DGONE -DWRITERS=2 -DVERSIONS=2 -DTRIES=1"
# shellcheck disable=SC2086 # lists of words
runs() {
    # ---- writers: the protocol
    check holds safety -DWRITERS=2 -DVERSIONS=2
    check holds safety -DWRITERS=2 -DVERSIONS=3 -DTRIES=1
    check holds safety -DWRITERS=3 -DVERSIONS=2 -DTRIES=1 -DNO_LATE
    check holds safety -DSTALE_GET
    check holds safety -DNO_FENCE
    check holds safety -DNO_PARENT_EPOCH
    check holds safety -DDERIVED
    # ---- writers: a rule broken
    check assertion safety -DNO_FENCE -DNO_PARENT_EPOCH
    check assertion safety -DSTALE_GET -DNO_PARENT_EPOCH
    check assertion safety -DDERIVED -DBUG_READ_FIRST
    check assertion safety -DBUG_ADOPT
    check assertion safety -DBUG_NO_WRITE_ID
    check assertion safety -DBUG_SETTLE_BY_READ
    check assertion safety -DBUG_BASELINE_EARLY
    check assertion safety -DBUG_COMMIT_FIRST
    check assertion safety -DBUG_CLEAN_UP
    # ---- torn reads, a rotten baseline, a store that goes and comes back
    check holds safety -DTORN -DNO_LATE
    check holds safety -DTORN -DVERSIONS=1
    check assertion safety -DTORN -DNO_PROOF
    check holds safety -DROT -DVERSIONS=3 -DTRIES=1
    check assertion safety -DROT -DVERSIONS=3 -DTRIES=1 -DNO_SWEEP
    check holds safety $gone -DNO_LATE
    check holds safety -DGONE -DWRITERS=1 -DVERSIONS=3 -DTRIES=1
    check assertion safety $gone -DNO_GROUND
    check assertion safety $gone -DBUG_ANY_PLACE
    check assertion safety $gone -DBUG_MAKE_PLACE
    check assertion safety $gone -DNO_MEMORY
    # ---- collectors, ways and a follower: the protocol
    check holds safety $alone -DFOLDS
    check holds safety $alone -DCOLLECTORS=2 -DTRIES=1
    check holds safety -DCOLLECT -DWRITERS=2 -DVERSIONS=1 -DNO_FOLLOWER -DWAYS=1
    check holds safety $alone -DTHIN -DTRIES=1
    check holds safety $one -DTRIES=1
    check holds safety $one -DNO_LATE -DFOLDS
    check holds safety $one -DNO_LATE -DFOLDS -DLISTED
    check holds progress $one -DNO_LATE
    check holds progress $one -DNO_LATE -DFOLDS -DWAYS=1
    check holds progress $one -DNO_LATE -DLISTED -DSTALE_LIST -DWAYS=1
    check holds safety $alone -DROT -DTRIES=1
    check holds safety $alone -DROT -DTRIES=1 -DNO_ANCHOR_PROOF
    # ---- collectors, ways and a follower: a rule broken
    check assertion safety $alone -DROT -DTRIES=1 -DNO_ANCHOR_PROOF -DNO_FLOOR_PROOF
    check assertion safety $alone -DTHIN -DTRIES=1 -DBUG_NO_LOOK_AT_FLOOR
    check assertion safety $alone -DTHIN -DTRIES=1 -DBUG_NO_LOOK_AT_ANCHOR
    check assertion safety $alone -DBUG_NAMES_BEFORE_HEAD
    check assertion safety $alone -DBUG_ORPHANS_ABOVE_HEAD
    check assertion safety $alone -DBUG_FLOOR_WITHOUT_ANCHOR
    check assertion safety $alone -DCOLLECTORS=2 -DTRIES=1 -DBUG_WAY_ORPHANS
    check assertion safety $one -DNO_LATE -DLISTED -DBUG_IGNORE_FOLLOWERS
    check assertion safety $one -DNO_LATE -DBUG_APPLY_EARLY
    check "no progress" progress $one -DNO_LATE -DBUG_NO_FALLBACK
}
runs
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
