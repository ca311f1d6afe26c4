#!/bin/sh
# Installs a wheel of scripts/wheel.sh in a root that has only Python, and uses it there: under
# qemu if it is for another processor. The exit status is 77 if no such root can be made.
#
#     scripts/test-wheel.sh WHEEL
set -eu
cd "$(dirname "$0")/.."

wheel=$1
arch=${wheel##*manylinux_2_34_} arch=${arch%.whl}
bare=$(scripts/debian-root.sh bare "$arch")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP

cp -a "$bare" "$scratch/root"
mkdir -p "$scratch/root/try" "$scratch/root/tmp" "$scratch/root/proc"
cp "$wheel" tests/python/wheel_check.py "$scratch/root/try"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$scratch/root/try/key" \
    -out "$scratch/root/try/cert" 2>"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
echo '127.0.0.1 localhost' >"$scratch/root/etc/hosts"
emulator=
if [ "$arch" != "$(uname -m)" ]; then
    emulator=/try/emulator
    cp "$(command -v "qemu-$arch-static")" "$scratch/root$emulator"
fi

as_root=
[ "$(id -u)" -eq 0 ] || as_root=--map-root-user
# With /proc, where a program finds its own path, and so the libraries beside it.
# shellcheck disable=SC2086,SC2016 # words or none; the inner shell expands its arguments
inside() { # ARGUMENT... of Python
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin unshare --mount $as_root sh -c '
        mount --rbind /proc "$1/proc" && exec chroot "$@"' sh \
        "$scratch/root" $emulator /usr/bin/python3 "$@"
}
if ! inside -c '' 2>"$scratch/log"; then
    echo "skipped: test-wheel: this machine permits no root of its own, $(tail -n 1 "$scratch/log")" >&2
    exit 77
fi
inside "$(cd "$scratch/root" && echo usr/share/python-wheels/pip-*.whl)/pip" --quiet install \
    --break-system-packages --root-user-action ignore --no-index "/try/$(basename "$wheel")"
# shellcheck disable=SC2086 # a word or none
inside /try/wheel_check.py /try/cert /try/key $emulator
