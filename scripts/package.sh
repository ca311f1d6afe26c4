#!/bin/sh
# Builds the Python package as it is released: a source archive, and the wheel out of that.
#
#     scripts/package.sh
#
# build-python/dist holds both, build-python/site the wheel unpacked, for PYTHONPATH.
set -eu
cd "$(dirname "$0")/.."

venv=$(scripts/venv.sh package)
rm -rf build-python/dist build-python/site
"$venv/bin/python" -m build --no-isolation --outdir build-python/dist
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-index \
    --target build-python/site build-python/dist/*.whl
