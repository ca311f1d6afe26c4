#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"

it "runs tests in a HOME of their own"
[ "$HOME" != "$(getent passwd "$(id -u)" | cut -d : -f 6)" ]
[ -z "$(ls -A "$HOME")" ]
env | grep '^XDG_' && die "directories of the user are named"
[ "$AWS_EC2_METADATA_DISABLED" = true ]
deltawire synth -o run --params 100K --steps 1 --write checkpoints --quiet >/dev/null
deltawire publish "$PWD/stream" run/base --quiet >/dev/null
[ -d "$HOME/.cache/deltawire/baselines" ]

it "asks this machine for keys of a machine, if at all"
[ "$AWS_EC2_METADATA_SERVICE_ENDPOINT" = http://127.0.0.1:9 ] && [ "$GCE_METADATA_HOST" = 127.0.0.1:9 ]

it "fails a test that sends to another machine"
# alone ADDRESS...: a test that connects to them, in a network that has only loopback
alone() {
    unshare --net sh -c 'ip link set lo up && DW_TEST_LOOPBACK=1 exec "$@"' sh "$DW_TEST_DIR/own_home.sh" \
        python3 -c 'import socket, sys
for address in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    socket.socket(family, socket.SOCK_DGRAM).connect_ex((address, 9))' "$@" 2>err.txt
}
if unshare --net ip -V >/dev/null 2>&1; then
    alone 127.0.0.1 ::1
    for address in 169.254.169.254 192.0.2.1 2001:db8::1; do
        alone 127.0.0.1 $address && die "a test sent to $address"
        grep -q 'sent packets to an address that is not loopback' err.txt
    done
else
    echo "not tried: this machine permits no network of the tests' own"
fi

it "gives one to each, and removes it"
status=0
# shellcheck disable=SC2016 # the other shell expands it
own=$(HOME=$HOME/user XDG_CONFIG_HOME=/nowhere "$DW_TEST_DIR/own_home.sh" sh -c '
    touch "$HOME/mark"
    echo "$HOME"
    [ -z "$(env | grep ^XDG_)" ] && exit 7') || status=$?
[ $status -eq 7 ]
[ -n "$own" ] && [ "$own" != "$HOME" ] && [ "$own" != "$HOME/user" ] && [ ! -e "$own" ]
