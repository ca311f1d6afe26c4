#!/bin/sh
# Makes the files of a release out of the commit HEAD.
#
#     scripts/release.sh [VERSION]
#
# DIR (build-release) gets the source archive, what scripts/wheel.sh makes of it for ARCHS
# (x86_64 aarch64): wheels, each tried where only Python is, and the archive for Python; the list
# of packages in each wheel (an SBOM, CycloneDX); and SHA256SUMS. The same commit gives the same
# bytes. VERSION must be that of the headers, and CHANGELOG.md must have its date; without VERSION
# it is a draft.
set -eu
cd "$(dirname "$0")/.."

dir=$(realpath -m "${DIR:-build-release}")
version=$(git show HEAD:include/deltawire/base.h | sed -n 's/.*DW_VERSION_STRING "\(.*\)"/\1/p')
if [ $# -gt 0 ]; then
    [ "$1" = "$version" ] || { echo "release: the headers have the version $version, not $1" >&2; exit 2; }
    git show HEAD:CHANGELOG.md | grep -E "^## $version - [0-9]{4}-[0-9]{2}-[0-9]{2}$" >/dev/null || {
        echo "release: CHANGELOG.md names no date for $version" >&2
        exit 2
    }
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$dir"
mkdir -p "$dir"
name=deltawire-$version
git -c tar.umask=0022 archive --format=tar --prefix="$name/" HEAD | gzip -n9 >"$dir/$name-source.tar.gz"
tar -xzf "$dir/$name-source.tar.gz" -C "$scratch"
for arch in ${ARCHS:-x86_64 aarch64}; do
    "$scratch/$name/scripts/wheel.sh" "$arch" "$scratch/made"
    for wheel in "$scratch/made/"*_"$arch".whl; do
        scripts/test-wheel.sh "$wheel"
        unzip -p "$wheel" '*/sboms/deltawire.cdx.json' >"$dir/$(basename "$wheel" .whl).cdx.json"
    done
done
mv "$scratch/made/"*.whl "$scratch/made/"*.tar.gz "$dir"
(cd "$dir" && sha256sum -- * >"$scratch/sums" && mv "$scratch/sums" SHA256SUMS && cat SHA256SUMS)
[ $# -gt 0 ] || echo "release: a draft of $version: for a release, name the version" >&2
