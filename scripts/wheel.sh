#!/bin/sh
# Builds the wheel for other machines: with all libraries in it, for glibc 2.34 and later.
#
#     scripts/wheel.sh [x86_64|aarch64] [DIR]
#
# DIR (build-wheel) gets the wheel and the source archive of the package. They are the same,
# byte for byte, for the same sources, packages of Debian, and compiler. On the other kind of
# machine the wheel is cross-compiled. scripts/test-wheel.sh tries it.
set -eu
cd "$(dirname "$0")/.."
umask 022

arch=${1:-$(uname -m)}
dir=$(realpath -m "${2:-build-wheel}")
work=$dir/$arch
root=$(scripts/debian-root.sh build "$arch")
venv=$(scripts/venv.sh wheel)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date -r CHANGELOG.md +%s)}"
export SOURCE_DATE_EPOCH LC_ALL=C

# Its own output has the times and the owner of the files.
rm -rf "$work"
mkdir -p "$work/source"
"$venv/bin/python" -m build --quiet --no-isolation --sdist --outdir "$work/sdist" .
sdist=$(basename "$work"/sdist/*.tar.gz)
tar -xzf "$work/sdist/$sdist" -C "$work/source"
chmod -R u=rwX,go=rX "$work/source"
tar -C "$work/source" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -cf - "${sdist%.tar.gz}" | gzip -n9 >"$dir/$sdist"

pkgconfig=lib/$arch-linux-gnu/pkgconfig
DW_DEBIAN_ROOT=$root DW_PYTHON_INCLUDE=$root/usr/include/python3.11 \
    PKG_CONFIG_SYSROOT_DIR=$root \
    PKG_CONFIG_LIBDIR=$root/usr/local/lib/pkgconfig:$root/usr/$pkgconfig:$root/usr/share/pkgconfig \
    CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/debian-root.cmake -DDW_WHEEL=ON" \
    _PYTHON_HOST_PLATFORM=linux-$arch \
    "$venv/bin/python" -m build --no-isolation --wheel --outdir "$work/plain" \
    "$work/source/${sdist%.tar.gz}" >"$work/log" 2>&1 || {
    tail -n 25 "$work/log" >&2
    echo "wheel: the build failed; see $work/log" >&2
    exit 1
}

# It takes only platforms of this machine by name, so what it found is checked below.
PATH=$venv/bin:$PATH auditwheel repair --plat auto --only-plat --wheel-dir "$work" \
    --ldpaths "$root/lib/$arch-linux-gnu:$root/usr/lib/$arch-linux-gnu" "$work"/plain/*.whl \
    >>"$work/log" 2>&1 || {
    tail -n 25 "$work/log" >&2
    echo "wheel: auditwheel refuses it; see $work/log" >&2
    exit 1
}
[ -e "$(echo "$work"/*-manylinux_2_34_"$arch".whl)" ] || {
    echo "wheel: $(basename "$work"/*.whl) is not for manylinux_2_34: something needs another glibc" >&2
    exit 1
}
"$venv/bin/python" scripts/finish-wheel.py "$root" "$work"/*.whl "$dir" \
    "$work"/source/*/build-python/temp.*/library/*.linked
