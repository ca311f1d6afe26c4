#!/usr/bin/env bash
# Every word of examples/wordle/env/words.txt is in Debian's wamerican.
set -euo pipefail
dictionary=${DW_WORDS:-/usr/share/dict/american-english}
[ -e "$dictionary" ] || { echo "skipped: no $dictionary (Debian's package wamerican)"; exit 77; }
"$(dirname "$0")/../../examples/wordle/env/words.sh" --check "$dictionary"
