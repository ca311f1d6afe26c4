#!/bin/sh
# The candidates for words.txt: the plain five-letter words of Debian's wamerican.
#
#     words.sh [DICTIONARY]          prints them
#     words.sh --check [DICTIONARY]  checks that words.txt has only these, sorted and unique
set -eu
check=false
[ "${1:-}" != --check ] || { check=true; shift; }
dictionary=${1:-/usr/share/dict/words}
candidates() { LC_ALL=C grep -xE '[a-z]{5}' "$dictionary" | LC_ALL=C sort -u; }
$check || { candidates; exit; }

list=$(dirname "$0")/words.txt
LC_ALL=C sort -cu "$list"
strange=$(candidates | LC_ALL=C comm -13 - "$list")
[ -z "$strange" ] || { echo "not in $dictionary: $strange" >&2; exit 1; }
