#!/bin/sh
# Makes, or finds again, a directory with packages of Debian 12, and prints its path. Nothing of
# the machine changes.
#
#     scripts/debian-root.sh build ARCH     what wheels are compiled against (scripts/wheel.sh)
#     scripts/debian-root.sh bare ARCH      Python, and nothing that it does without
#
# ARCH is x86_64 or aarch64. DW_NEW_ROOTS=1 fetches all packages anew. var/lib/dpkg/info holds
# the control files of each package, NAME/control and NAME/md5sums, for scripts/finish-wheel.py.
#
# Debian's libcurl brings Kerberos, LDAP, RTMP and SSH, so that of the root `build` is compiled
# from Debian's source package, for HTTP and HTTPS alone.
#
# The exit status is 77 if Debian's mirror, or the right to make a root, is missing.
set -eu
cd "$(dirname "$0")/.."

case ${2-} in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) echo "usage: scripts/debian-root.sh build|bare x86_64|aarch64" >&2; exit 2 ;;
esac
case $1 in
build) packages=libc6-dev,libssl-dev,libzstd-dev,libxxhash-dev,libexpat1-dev,zlib1g-dev
    packages=$packages,libmicrohttpd-dev,libjansson-dev,libpython3.11-dev ;;
bare) packages=python3,python3-pip-whl ;;
*) echo "debian-root: no root '$1' (build, bare)" >&2; exit 2 ;;
esac

key=$(cat scripts/debian-root.sh cmake/debian-root.cmake | sha256sum | cut -c 1-12)
cache=${DELTAWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}
root=$cache/root-$1-$2-$key
log=$root.log

mkdir -p "$cache"
exec 9>"$root.lock"
flock 9
[ -z "${DW_NEW_ROOTS:-}" ] || rm -rf "$root"
if [ -e "$root" ]; then
    echo "$root"
    exit
fi

sources() { # TYPE
    echo "$1 http://deb.debian.org/debian bookworm main"
    echo "$1 http://deb.debian.org/debian bookworm-updates main"
    echo "$1 http://deb.debian.org/debian-security bookworm-security main"
}

# mmdebstrap runs these in a shell, with the root as $1, while it still has the archives.
# shellcheck disable=SC2016
keep_control='for deb in "$1"/var/cache/apt/archives/*.deb; do
    dpkg-deb -e "$deb" "$1/var/lib/dpkg/info/$(dpkg-deb -f "$deb" Package)"
done'
# shellcheck disable=SC2016
get_curl='mkdir -p "$1/usr/src" && cd "$1/usr/src" &&
    APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q source --download-only curl'
[ "$1" = build ] || get_curl=true

build_curl() {
    DW_DEBIAN_ROOT=$root.new
    export DW_DEBIAN_ROOT
    dpkg-source -x "$root.new"/usr/src/curl_*.dsc "$root.new/usr/src/curl" &&
        cmake -S "$root.new/usr/src/curl" -B "$root.new/usr/src/build" -DCMAKE_BUILD_TYPE=Release \
            -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/debian-root.cmake" -DCMAKE_INSTALL_PREFIX=/usr/local \
            -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
            -DBUILD_CURL_EXE=OFF -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF \
            -DHTTP_ONLY=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF \
            -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=/etc/ssl/certs &&
        cmake --build "$root.new/usr/src/build" -j "${JOBS:-$(nproc)}" &&
        DESTDIR=$root.new cmake --install "$root.new/usr/src/build" &&
        install -D -m 644 "$root.new/usr/src/curl/debian/copyright" \
            "$root.new/usr/local/share/doc/curl/copyright" &&
        sed -i -e '/^Libs.private/d' -e "s/^Libs:.*/Libs: -L\${libdir} -lcurl/" \
            "$root.new/usr/local/lib/pkgconfig/libcurl.pc" && # it names shared libraries
        rm -rf "$root.new/usr/src/build" "$root.new/usr/src/curl"
}

echo "debian-root: fetching $packages for $2 into $root" >&2
rm -rf "$root.new"
{ sources deb; sources deb-src; } | mmdebstrap --architectures="$arch" --variant=extract \
    --aptopt='Acquire::Retries "5"' --include="$packages" --extract-hook="$keep_control" \
    --extract-hook="$get_curl" bookworm "$root.new" - >"$log" 2>&1 || {
    echo "skipped: debian-root: no packages of Debian 12, $(grep '^E: ' "$log" | tail -n 1);" \
        "see $log" >&2
    exit 77
}
if [ "$1" = build ]; then
    build_curl >>"$log" 2>&1 || {
        echo "debian-root: curl does not compile; see $log" >&2
        exit 1
    }
fi
mv "$root.new" "$root"
echo "$root"
