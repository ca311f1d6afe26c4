#!/bin/sh
# Builds the Python package as it is released: a source archive, and the wheel from
# that.
#
#     scripts/package.sh
#
# build-python/dist holds both, build-python/site the wheel unpacked, for PYTHONPATH. If
# they are there, and no file of the package has changed since, nothing is built.
set -eu
cd "$(dirname "$0")/.."

venv=$(scripts/venv.sh package)

# A hash of all files of the package; nothing if this is no checkout.
sources() {
    git rev-parse --is-inside-work-tree >/dev/null 2>&1 || return 0
    {
        echo "$venv"
        git ls-files -z -co --exclude-standard -- CMakeLists.txt LICENSE MANIFEST.in README.md \
            bench cli cmake deltawire.pc.in docs/deltawire.1 include pyproject.toml python \
            setup.py src scripts/package.sh | sort -zu | xargs -0 sha256sum
    } 2>/dev/null | sha256sum
}
stamp=build-python/site/.sources
built=$(sources)
if [ -n "$built" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$built" ]; then
    echo "build-python holds the package as it is"
    exit
fi

rm -rf build-python/dist build-python/site
"$venv/bin/python" -m build --no-isolation --outdir build-python/dist
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-index \
    --target build-python/site build-python/dist/*.whl
[ "$built" != "$(sources)" ] || echo "$built" >"$stamp"
