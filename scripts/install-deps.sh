#!/bin/sh
# Installs what is missing, by Debian and Ubuntu package name.
#
#     scripts/install-deps.sh GROUP...    groups: build test servers hosts bench wheel deploy dev
#
# Each package is listed with a command that succeeds if it is not needed: only a
# working tool or library counts, not its origin. So nothing changes if everything is
# there, and a machine without apt-get can have its own.
set -eu

missing=
want() { # PACKAGE COMMAND...
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

links() { # COMPILER FLAG...
    echo 'int main(void) { return 0; }' | "$@" -x c - -o "$scratch/linked"
}

fuzzes() {
    echo '#include <stddef.h>
          int LLVMFuzzerTestOneInput(const void *p, size_t n) { return !p && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o "$scratch/linked"
}

installed() { # COMMAND
    command -v "$1"
}

cmake_is_new() {
    cmake --version | awk '
        /^cmake version/ { split($3, v, "."); new = v[1] * 100 + v[2] >= 322 }
        END { exit !new }'
}

qemu() {
    qemu-aarch64-static --version || qemu-aarch64 --version
}

debian() {
    grep -qx ID=debian /etc/os-release
}

group_build() {
    want gcc            gcc --version
    want libc6-dev      links gcc
    want make           make --version
    want cmake          cmake_is_new
    want pkg-config     pkg-config --version
    want libjansson-dev pkg-config --exists jansson
    want libzstd-dev    pkg-config --exists libzstd
    want libxxhash-dev  pkg-config --exists libxxhash
    want libssl-dev     pkg-config --exists libcrypto
    want libcurl4-openssl-dev pkg-config --exists libcurl
    want libexpat1-dev  pkg-config --exists expat
    want libmicrohttpd-dev pkg-config --exists libmicrohttpd
    want zlib1g-dev     pkg-config --exists zlib
}

group_python() {
    want python3      python3 --version
    want python3-venv python3 -c 'import ensurepip, venv'
}

python_headers() {
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
}

group_test() {
    group_python
    want python3-dev   python_headers # for the package
    want zstd          zstd --version # for the decoder in tests/format
    want libcmocka-dev pkg-config --exists cmocka
    want spin          spin -V # for model/check.sh
    want curl          curl --version
    want openssl       openssl version
    want wamerican     test -e /usr/share/dict/american-english # for tests/wordle/words.sh
    want prometheus    promtool --version # to check /metrics
    want clang         clang --version
    want llvm          llvm-symbolizer --version
    # for tests/page, which is skipped on Ubuntu, because its package is empty
    if debian 2>/dev/null; then
        want chromium        chromium --version
        want chromium-driver chromedriver --version
    fi
    # libFuzzer is a separate package, named after clang's version. That is known once
    # clang is installed, so there is a second pass below.
    clang=$(clang -dumpversion 2>/dev/null) && want "libclang-rt-${clang%%.*}-dev" fuzzes
    if [ "$(uname -m)" != aarch64 ]; then # the NEON kernels, on other machines
        want gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc --version
        want libc6-dev-arm64-cross  links aarch64-linux-gnu-gcc -static
        want qemu-user-static       qemu
    fi
}

# Real servers, which the tests start themselves, and tools that talk to them.
group_servers() {
    want ceph-common     ceph --version
    want ceph-mon        ceph-mon --version
    want ceph-osd        ceph-osd --version
    want radosgw         radosgw --version
    want swift-account   installed swift-account-server
    want swift-container installed swift-container-server
    want swift-object    installed swift-object-server
    want swift-proxy     installed swift-proxy-server
    want memcached       memcached -V
    want s3cmd           s3cmd --version
    want iproute2        ip -V
    want faketime        installed faketime
    want spin            spin -V
}

# The demo on three hosts: the proxy between them.
group_hosts() {
    want iproute2  ip -V
    want tinyproxy installed tinyproxy
}

group_bench() {
    group_python
}

# Wheels for this and the other processor (scripts/wheel.sh).
group_wheel() {
    group_python
    want mmdebstrap             mmdebstrap --version
    want debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
    want dpkg-dev               dpkg-source --version
    want openssl                openssl version
    want unzip                  installed unzip
    want gcc-x86-64-linux-gnu   x86_64-linux-gnu-gcc --version
    want gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc --version
    want qemu-user-static       qemu
}

# Containers, which scripts/test-deploy.sh builds and runs.
group_deploy() {
    want podman         podman --version
    want runc           runc --version
    want podman-compose installed podman-compose
    want mmdebstrap     mmdebstrap --version
    want python3-yaml   python3 -c 'import yaml'
    want openssl        openssl version
    want curl           curl --version
}

group_dev() {
    want clang-format clang-format --version
    want clang-tidy   clang-tidy --version
    want shellcheck   shellcheck --version
}

look() {
    missing=
    for group in "$@"; do
        "group_$group"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

check_root() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || {
        echo "install-deps: needs root or sudo to install$missing; install them yourself:" \
            "apt-get install$missing" >&2
        exit 1
    }
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >>"$scratch/log" 2>&1
}

# Packages of servers start them now and at each boot, unless a policy forbids it.
policy=/usr/sbin/policy-rc.d
start_no_daemons() {
    [ ! -e $policy ] || return 0
    printf '#!/bin/sh\nexit 101\n' >"$scratch/policy"
    as_root install -m 755 "$scratch/policy" $policy
    made_policy=1
}

forget_policy() {
    [ -z "$made_policy" ] || as_root rm -f $policy
    made_policy=
}

disable_new_daemons() {
    [ -d /run/systemd/system ] || return 0
    # shellcheck disable=SC2086 # a list of words
    units=$(dpkg -L $missing | sed -n 's|.*/systemd/system/\([^@/]*\.service\)$|\1|p')
    # shellcheck disable=SC2086
    [ -z "$units" ] || as_root systemctl --quiet disable $units >>"$scratch/log" 2>&1 || true
}

install_missing() {
    check_root
    echo "install-deps: installing$missing" >&2
    start_no_daemons
    # A broken third-party source makes the update fail, but not the install.
    apt update || true
    # shellcheck disable=SC2086 # a list of words
    if ! apt install --no-install-recommends $missing; then
        tail -n 20 "$scratch/log" >&2
        echo "install-deps: could not install:$missing" >&2
        exit 1
    fi
    disable_new_daemons
}

for group in "$@"; do
    case $group in
    build | test | servers | hosts | bench | wheel | deploy | dev) ;;
    *)
        echo "install-deps: no group '$group' (build, test, servers, hosts, bench, wheel, deploy, dev)" >&2
        exit 2
        ;;
    esac
done
scratch=$(mktemp -d)
made_policy=
trap 'forget_policy; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP

look "$@"
if command -v apt-get >/dev/null; then
    for _ in 1 2; do
        [ -n "$missing" ] || break
        install_missing
        look "$@"
    done
fi
if [ -n "$missing" ]; then
    echo "install-deps: still missing, by Debian's names:$missing" >&2
    exit 1
fi
