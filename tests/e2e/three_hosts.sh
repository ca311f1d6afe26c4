#!/usr/bin/env bash
# labels: slow servers
# A trainer, a store and a rollout engine on three hosts (tests/servers/hosts.sh), with
# links of 200 Mbit/s and, if the kernel has netem, a round trip of 20 ms. The only way
# from trainer to rollouts is the bucket. Twelve steps of a real run go through it, and
# each leads to its recorded state.
#
# Exit status 77: not allowed, or not possible, on this machine.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
tests=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/servers/hosts.sh
. "$tests/servers/hosts.sh"

# ---- what is left is removed, also after a SIGKILL -----------------------------------
clean_up() { # NAME DIR
    hosts_kill "$1"
    "$tests/servers/radosgw.sh" stop "$2/server" >/dev/null 2>&1 || true
    hosts_remove "$1"
    rm -rf "$2"
}
if [ "${1:-}" = --clean-up-after ]; then # PID NAME DIR
    tail --pid="$2" -f /dev/null
    [ ! -e "$4" ] || clean_up "$3" "$4"
    exit 0
fi

skip() {
    echo "skipped: $*"
    exit 77
}
die() {
    echo "FAILED after: ${said:-the start}: $*" >&2
    exit 1
}
it() {
    said=$*
    echo "- $*"
}

deltawire=${DELTAWIRE:-$tests/../build/deltawire}
shared=${DW_SHARED:-$tests/../../shared}
trace=$shared/data/rl-trace
[ -e "$trace/states.json" ] || trace=$tests/data/trace
name=dw$$
hosts_allowed
dir=$(mktemp -d)
trap 'clean_up "$name" "$dir"' EXIT
trap 'exit 130' INT TERM HUP
setsid "$0" --clean-up-after $$ "$name" "$dir" </dev/null >/dev/null 2>&1 &
disown

# ---- the network -------------------------------------------------------------------
slow_down() { # HOST DEVICE
    on "$1" tc qdisc add dev "$2" root handle 1: tbf rate 200mbit burst 256kb latency 100ms ||
        skip "the kernel cannot limit links (tbf)"
    on "$1" tc qdisc add dev "$2" parent 1:1 handle 10: netem delay 10ms 2>/dev/null ||
        no_delay=1
}

hosts_start
no_delay=
for host in trainer rollouts; do
    slow_down $host eth0
    slow_down store $host
done
[ -z "$no_delay" ] || echo "- (no delay on the links: the kernel has no netem)"

it "trainer and rollouts cannot reach each other"
# prints the result of connecting to an open port
connect() { # FROM ADDRESS SECONDS
    on "$1" python3 - "$2" "$3" <<'END'
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7777), float(sys.argv[2])).close()
    print("connected")
except OSError as e:
    print(type(e).__name__, e)
END
}
listen() { # HOST
    ip netns exec "$name-$1" python3 -c '
import socket
s = socket.create_server(("0.0.0.0", 7777))
print("ready", flush=True)
while True:
    s.accept()[0].close()' >"$dir/listen.$1" &
    disown
    local until_s=$((SECONDS + 180))
    until [ -s "$dir/listen.$1" ]; do
        [ $SECONDS -lt $until_s ] || die "nobody listens on $1"
        sleep 0.05
    done
}
listen trainer
listen rollouts
[ "$(connect store 10.77.1.2 60)" = connected ] || die "the store does not reach the trainer"
[ "$(connect store 10.77.2.2 60)" = connected ] || die "the store does not reach rollouts"
for pair in "trainer 10.77.2.2" "rollouts 10.77.1.2"; do
    # shellcheck disable=SC2086 # two words
    outcome=$(connect $pair 2)
    [ "$outcome" != connected ] || die "${pair% *} reaches ${pair#* }"
    echo "  ${pair% *} to ${pair#* }: $outcome"
done
# not even with a route: the store forwards nothing
on trainer ip route add 10.77.2.0/24 via 10.77.1.1
[ "$(connect trainer 10.77.2.2 2)" != connected ] || die "the store passes packets on"
on trainer ip route del 10.77.2.0/24

it "both reach the store"
status=0
on store env RGW_HOST=10.77.0.1 "$tests/servers/radosgw.sh" start "$dir/server" || status=$?
[ $status -ne 77 ] || skip "radosgw cannot run here"
[ $status -eq 0 ] || die "radosgw does not start"
# shellcheck disable=SC1091 # written by radosgw.sh
. "$dir/server/env"
export AWS_ENDPOINT_URL=$DW_TEST_S3_ENDPOINT
url=s3://$DW_TEST_S3_BUCKET/run

# ---- the stream --------------------------------------------------------------------
expected() { # STEP
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["states"][sys.argv[2]])' \
        "$trace/states.json" "$1"
}

it "rollouts follows what trainer publishes"
mkdir "$dir/trainer-disk" "$dir/rollouts-disk"
cp -r "$trace/base" "$dir/trainer-disk/model"
chmod -R u+w "$dir/trainer-disk"
cat >"$dir/rollouts-disk/reload.sh" <<END
"$deltawire" verify "\$DELTAWIRE_DIR" --sha256 --json >now.json
python3 -c 'import json, sys
print(sys.argv[1], json.load(open("now.json"))["sha256"])' "\$DELTAWIRE_VERSION" >>loaded
END
(
    cd "$dir/rollouts-disk"
    exec ip netns exec "$name-rollouts" "$deltawire" follow "$url" --into model --interval 0.2 \
        --until 12 --exec 'sh ./reload.sh' --quiet
) &
follower=$!
began=$SECONDS
for step in $(seq 0 12); do
    [ "$step" -eq 0 ] ||
        "$deltawire" apply "$trace/deltas/$(printf 'step_%06d' "$step").safetensors" \
            --to "$dir/trainer-disk/model" --quiet >/dev/null
    on trainer env XDG_CACHE_HOME="$dir/trainer-disk/cache" "$deltawire" publish "$url" \
        "$dir/trainer-disk/model" --step "$step" --quiet >/dev/null
done
wait $follower || die "follow ended with exit code $?"
echo "  13 versions in $((SECONDS - began)) s"

it "every version is the same bit by bit"
while read -r version sha256; do
    [ "$sha256" = "$(expected "$version")" ] || die "version $version differs"
done <"$dir/rollouts-disk/loaded"
[ "$(tail -n 1 "$dir/rollouts-disk/loaded")" = "12 $(expected 12)" ] || die "not at 12"
echo "  $(wc -l <"$dir/rollouts-disk/loaded") versions were loaded"

it "verify passes"
on rollouts "$deltawire" verify "$url" --quiet >/dev/null
