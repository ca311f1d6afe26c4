#!/usr/bin/env bash
# The demo on three hosts, that is, network namespaces (tests/servers/hosts.sh): the trainer
# on one, the rollout servers on another, and between them a host with a real S3 server,
# the environment and a proxy for text. The trainer and the rollout host have no route to
# each other: weights go through the bucket, prompts and guesses through the proxy.
#
#     scripts/demo-hosts.sh [option of wordle-demo ...]
#
# Needs root, and what scripts/install-deps.sh servers hosts installs.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
# shellcheck source=tests/servers/hosts.sh
. tests/servers/hosts.sh

clean_up() { # NAME DIR
    hosts_kill "$1"
    tests/servers/radosgw.sh stop "$2/server" >/dev/null 2>&1 || true
    hosts_remove "$1"
    rm -rf "$2"
}
if [ "${1:-}" = --clean-up-after ]; then # PID NAME DIR
    tail --pid="$2" -f /dev/null
    [ ! -e "$4" ] || clean_up "$3" "$4"
    exit 0
fi
skip() {
    echo "demo-hosts: $*" >&2
    exit 77
}

name=wd$$
command -v tinyproxy >/dev/null || skip "no tinyproxy; scripts/install-deps.sh hosts brings it"
hosts_allowed
dir=$(mktemp -d)
trap 'clean_up "$name" "$dir"' EXIT
trap 'exit 130' INT TERM HUP
setsid scripts/demo-hosts.sh --clean-up-after $$ "$name" "$dir" </dev/null >/dev/null 2>&1 &
disown
hosts_start

echo "starting radosgw and a proxy on the host between ..."
on store env RGW_HOST=10.77.0.1 tests/servers/radosgw.sh start "$dir/server" >"$dir/server.log" ||
    skip "radosgw does not start: $(tail -n 1 "$dir/server.log")"
# shellcheck disable=SC1091 # written by radosgw.sh
. "$dir/server/env"
export AWS_ENDPOINT_URL=$DW_TEST_S3_ENDPOINT
cat >"$dir/proxy.conf" <<END
Port 8888
Listen 10.77.0.1
Allow 10.77.1.2
Timeout 60
MaxClients 100
LogLevel Warning
END
ip netns exec "$name-store" tinyproxy -d -c "$dir/proxy.conf" >"$dir/proxy.log" 2>&1 &
disown
for _ in $(seq 100); do
    ! on store curl -s -o /dev/null http://10.77.0.1:8888/ || break
    sleep 0.1
done
on store curl -s -o /dev/null http://10.77.0.1:8888/ ||
    skip "tinyproxy does not start: $(tail -n 1 "$dir/proxy.log")"

echo "trainer 10.77.1.2 -> rollouts 10.77.2.2: $(on trainer ip route get 10.77.2.2 2>&1 | sed -n 1p)"
echo "rollouts 10.77.2.2 -> trainer 10.77.1.2: $(on rollouts ip route get 10.77.1.2 2>&1 | sed -n 1p)"
status=0
on store build/examples/wordle/wordle-demo --store "s3://$DW_TEST_S3_BUCKET" \
    --on-trainer "ip netns exec $name-trainer env http_proxy=http://10.77.0.1:8888 no_proxy=10.77.0.1" \
    --on-rollouts "ip netns exec $name-rollouts" --rollout-host 10.77.2.2 \
    --env-host 10.77.0.1 "$@" || status=$?
exit $status
