#!/usr/bin/env bash
# clang-tidy over the C files of src/ and cli/ (.clang-tidy has the checks), shellcheck
# over the scripts. Needs a configured build/. A tool that is not installed is skipped
# (scripts/install-deps.sh dev installs both).
#
#     scripts/lint.sh [FILE|DIR...]   these C files only
set -euo pipefail
cd "$(dirname "$0")/.."

have() {
    command -v "$1" >/dev/null || { echo "lint: no $1, passed over" >&2; false; }
}

c_files() { # FILE|DIR...
    find "$@" -name '*.c' ! -name neon.c -print0 # that one compiles on ARM only
}

# One file at a time: a check for va_list goes wrong if it sees several. clang-tidy counts
# even the warnings that it does not show.
tidy() { # OPTION...
    xargs -0r -n 1 -P "${JOBS:-$(nproc)}" clang-tidy -p build --quiet "$@" \
        2> >(grep -v 'warnings\? generated\.$' >&2)
}

# Finds commands that pipe into a reader which may end first: with pipefail the writer
# then gets SIGPIPE and sometimes fails.
early_readers() {
    grep -nE '^[^#]*[^|]\| *(head|grep +-[a-zA-Z]*q[a-zA-Z]*|sed +(-n +)?.?[0-9]*q)\b' "$@"
}

[ $# -gt 0 ] || set -- src cli
status=0
if have clang-tidy; then
    cmake build >/dev/null # it may list files that were renamed
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
