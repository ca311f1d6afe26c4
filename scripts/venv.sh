#!/bin/sh
# Makes, or finds again, the Python environment of the tests and prints its path.
#
#     scripts/venv.sh [torch] [zipnn] [peers]
#
# The directory is named after what it holds: another list of packages or another
# Python gets another one, and a finished one is never changed. The lock lets runs
# that start together share one; the stamp tells a whole one from an interrupted one.
set -eu

packages='numpy safetensors pytest hypothesis botocore boto3 prometheus_client'
for extra in "$@"; do
    case $extra in
    torch) packages="$packages torch==2.13.0" ;;
    zipnn) packages="$packages zipnn" ;;
    peers) packages="$packages boto3[crt] obstore s5cmd" ;; # of bench/s3_peer.py
    *) echo "usage: scripts/venv.sh [torch] [zipnn] [peers]" >&2; exit 2 ;;
    esac
done

key=$( (echo "$packages"; python3 -VV; command -v python3) | sha256sum | cut -c 1-12)
cache=${DELTAWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}
venv=$cache/venv-test-$key

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/complete" ] || ! "$venv/bin/python" -c 'import pytest' 2>/dev/null; then
    echo "venv: installing $packages into $venv" >&2
    python3 -m venv --clear "$venv" >&2
    # shellcheck disable=SC2086 # a list of words
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages >&2
    touch "$venv/complete"
fi
echo "$venv"
