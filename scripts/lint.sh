#!/usr/bin/env bash
# clang-tidy over the C files of src/ and cli/ (.clang-tidy has the checks), shellcheck over
# the scripts. Needs a configured build/. A tool that is not installed is passed over
# (scripts/install-deps.sh dev brings both).
#
#     scripts/lint.sh [FILE...]       these C files only
set -euo pipefail
cd "$(dirname "$0")/.."

have() {
    command -v "$1" >/dev/null || { echo "lint: no $1, passed over" >&2; false; }
}

c_files() {
    if [ $# -gt 0 ]; then
        printf '%s\0' "$@"
    else
        find src cli -name '*.c' ! -name neon.c -print0 # that one compiles on ARM only
    fi
}

tidy() { # OPTION...
    xargs -0r -n 4 -P "${JOBS:-$(nproc)}" clang-tidy -p build --quiet "$@"
}

# Commands that pipe into a reader which leaves before the end: with pipefail, the writer
# gets SIGPIPE and fails now and then.
early_readers() {
    grep -nE '^[^#]*[^|]\| *(head|grep +-[a-zA-Z]*q[a-zA-Z]*|sed +(-n +)?.?[0-9]*q)\b' "$@"
}

status=0
if have clang-tidy; then
    # lint.h has macros with the names of what base/error.c defines. It includes headers
    # before a file can define _GNU_SOURCE.
    c_files "$@" | { grep -zv '/base/error\.c$' || true; } |
        tidy --extra-arg=-D_GNU_SOURCE= --extra-arg=-include \
            --extra-arg="$PWD/scripts/lint.h" || status=1
    c_files "$@" | { grep -z '/base/error\.c$' || true; } | tidy || status=1
fi
mapfile -d '' scripts < <(find .ci deploy model scripts tests \( -name '*.sh' -o -path .ci/run \) -print0)
if have shellcheck; then
    shellcheck -x -P SCRIPTDIR -S warning "${scripts[@]}" || status=1
fi
early_readers "${scripts[@]}" && status=1
exit $status
