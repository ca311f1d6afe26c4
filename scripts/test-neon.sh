#!/bin/sh
# Compiles the kernels and their test for 64-bit ARM and runs them, under qemu if this
# is another machine. The last line is the test's own 'N passed, N failed'.
set -eu
cd "$(dirname "$0")/.."

if [ "$(uname -m)" = aarch64 ]; then
    cc=gcc run=
else
    cc=aarch64-linux-gnu-gcc
    run=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
fi

# Only with libc: cmocka and the other libraries are not available for ARM.
mkdir -p build-neon
$cc -std=c11 -O2 -g -static -Wall -Wextra -Wshadow -Wconversion -Werror \
    -fno-strict-aliasing -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE \
    -DDW_NO_CMOCKA -DDW_TEST_DIR="\"$PWD/tests\"" -Iinclude -Isrc -Itests \
    tests/unit/test_kernel.c src/kernel/dispatch.c src/kernel/plain.c src/kernel/neon.c \
    -o build-neon/test_kernel

$run build-neon/test_kernel
