#!/bin/sh
# Measures the figures of streams over a real S3 server on this machine: transfer
# compared with other clients, joining late, a slow link, memory, publishes during an
# anchor. Prints a table; build/bench-sync.json has the same as lines of JSON. Takes
# about half an hour.
#
#     ROUNDS          of what is compared with other clients (5)
#     FIGURES         transfer,trace,join,link,memory,upkeep: those that are wanted
#     BENCH_SYNC      more options for bench/sync_bench.py, such as --max-object 32M
#     RGW_GIB         size of the server's disk (6); it is in memory if there is twice as much
#
# The slow link needs root: two network namespaces, trainer and follower, each with a
# pair of interfaces to this one that are limited to 100 Mbit/s at both ends.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
trace=${DW_SHARED:-../shared}/data/rl-trace
build=${BUILD:-build}
work=$(mktemp -d)
tag=dw$$
net=198.18.$(($$ % 256)) # the addresses of benchmarks (RFC 2544)

clean_up() {
    for side in t f; do
        ip netns del "$tag$side" 2>/dev/null || true # its interfaces go with it
    done
    tests/servers/radosgw.sh stop "$work/server" || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

slow() { # IP-COMMAND-PREFIX DEVICE
    $1 tc qdisc add dev "$2" root tbf rate 100mbit burst 32kb latency 100ms
}

# A namespace whose only link is limited.
make_link() { # SIDE OUR-ADDRESS ITS-ADDRESS
    space=$tag$1
    ip netns add "$space" &&
        ip link add "$space-o" type veth peer name "$space-i" netns "$space" &&
        ip addr add "$2/30" dev "$space-o" &&
        ip link set "$space-o" up &&
        ip -n "$space" addr add "$3/30" dev "$space-i" &&
        ip -n "$space" link set "$space-i" up &&
        ip -n "$space" link set lo up &&
        ip -n "$space" route add default via "$2" &&
        slow '' "$space-o" &&
        slow "ip netns exec $space" "$space-i"
}

set -- --rounds "${ROUNDS:-5}" --work "$work"
host=127.0.0.1
if [ "$(id -u)" -eq 0 ] && make_link t "$net.1" "$net.2" && make_link f "$net.5" "$net.6"; then
    host=$net.1
    set -- "$@" --link "${tag}t" "${tag}f"
else
    echo "bench-sync: no network namespaces (not root?): the slow link is left out" >&2
fi
[ -z "${FIGURES:-}" ] || set -- "$@" --figures "$FIGURES"

venv=$(scripts/venv.sh peers)
RGW_HOST=$host RGW_GIB=${RGW_GIB:-6} tests/servers/radosgw.sh start "$work/server"
# shellcheck disable=SC1091 # made just now
. "$work/server/env"
export AWS_ENDPOINT_URL_S3="$DW_TEST_S3_ENDPOINT" TMPDIR="$work"

grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "$(nproc) cores, load at the start: $(cut -d' ' -f1-3 /proc/loadavg); rates are best / median"
if [ -L "$work/server/data" ]; then disk=memory; else disk=files; fi
echo "server: radosgw on $DW_TEST_S3_ENDPOINT, its disk in $disk"
mkdir -p "$build"
# shellcheck disable=SC2086 # a list of words
"$venv/bin/python" bench/sync_bench.py --programs "$build/bench" --trace "$trace" \
    --ceph-conf "$work/server/ceph.conf" --json "$build/bench-sync.json" "$@" ${BENCH_SYNC:-}
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg); the same as JSON: $build/bench-sync.json"
