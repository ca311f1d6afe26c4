#!/bin/sh
# Compares the exports of a shared library with the declarations of the public headers.
#
#     scripts/check-exports.sh build/libdeltawire.so
set -eu
include=$(dirname "$0")/../include/deltawire
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cat "$include"/*.h | tr '\n' ' ' | grep -oE 'DW_API [^(;]*\(' | grep -oE 'dw_[a-z0-9_]+\(' |
    tr -d '(' | sort >"$scratch/declared"
nm -D --defined-only "$1" | awk '{ print $3 }' | sort >"$scratch/exported"
diff -U 0 "$scratch/declared" "$scratch/exported"

cd "$include/../.."
unused=''
while read -r name; do
    grep -rqw "$name" cli bench python/src examples || unused="$unused $name"
done <"$scratch/declared"
[ -z "$unused" ] || { echo "exported, and used only by tests:$unused"; exit 1; }
