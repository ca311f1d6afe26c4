#!/bin/sh
# clang-tidy over the C files that build/ compiles, shellcheck over the scripts. A tool
# that is not installed is passed over (scripts/install-deps.sh dev brings both).
#
#     scripts/lint.sh [FILE...]       these C files only
set -eu
cd "$(dirname "$0")/.."

have() {
    command -v "$1" >/dev/null || { echo "lint: no $1, passed over" >&2; false; }
}

# Left out: checks that ask for C11's Annex K functions or against (a, b) of one type.
checks='-*,bugprone-*,clang-analyzer-*,performance-*'
checks=$checks,-bugprone-easily-swappable-parameters
checks=$checks,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling

c_files() {
    if [ $# -gt 0 ]; then
        printf '%s\0' "$@"
    else
        find src cli -name '*.c' ! -name neon.c -print0
    fi
}

status=0
if have clang-tidy; then
    c_files "$@" |
        xargs -0 -n 4 -P "${JOBS:-$(nproc)}" \
            clang-tidy -p build --quiet --checks="$checks" --warnings-as-errors='*' ||
        status=1
fi
if have shellcheck; then
    find .ci deploy model scripts tests \( -name '*.sh' -o -path .ci/run \) -print0 |
        xargs -0 shellcheck -x -P SCRIPTDIR -S warning || status=1
fi
exit $status
