#!/bin/sh
# The real loop on one machine, with no GPU: TRL's AsyncGRPOTrainer, a Wordle
# environment, and two vLLM servers with a follower beside each. Only a stream connects
# trainer and servers.
#
#     scripts/demo-trl.sh [STEPS]     default 40
#     STORE=s3://bucket/prefix        the stream goes there; default: a directory
#
# Installs vLLM and TRL once (3.5 GB). examples/trl-wordle has the parts, and describes
# how to spread them over machines.
set -eu
cd "$(dirname "$0")/.."
steps=${1:-40}
case $steps in '' | *[!0-9]*) echo "usage: scripts/demo-trl.sh [STEPS]" >&2; exit 2 ;; esac

venv=$(scripts/venv.sh vllm)
python=$venv/bin/python
if [ ! -e build-python/site/deltawire/trl.py ]; then
    echo "demo: building the Python package"
    mkdir -p build-python
    scripts/package.sh >build-python/package.log 2>&1 || {
        tail build-python/package.log >&2
        exit 1
    }
fi

scratch=$(mktemp -d)
url=${STORE:-file://$scratch}/wordle-$(date +%s)
groups='' # of processes that were started
cleanup() {
    trap '' INT TERM
    for pid in $groups; do kill -s TERM -- "-$pid" 2>/dev/null || true; done
    i=0
    while [ $i -lt 50 ] && alive; do i=$((i + 1)); sleep 0.1; done
    for pid in $groups; do kill -s KILL -- "-$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
alive() {
    for pid in $groups; do kill -s 0 -- "-$pid" 2>/dev/null && return 0; done
    return 1
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # NAME COMMAND...: in a process group of its own
    name=$1
    shift
    setsid "$@" >"$scratch/$name.log" 2>&1 </dev/null &
    groups="$groups $!"
}

fail() { # NAME
    echo "demo: $1 ended; the end of its log:" >&2
    tail -n 15 "$scratch/$1.log" >&2
    exit 1
}

await() { # NAME URL PID
    i=0
    until "$python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' \
        "$2" 2>/dev/null; do
        kill -0 "$3" 2>/dev/null || fail "$1"
        i=$((i + 1))
        [ $i -lt 1200 ] || fail "$1"
        sleep 0.5
    done
}

export PYTHONPATH="$PWD/build-python/site" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CACHE_ROOT="$venv/vllm-cache"
export VLLM_SERVER_DEV_MODE=1
# shellcheck disable=SC2046 # a word each
set -- $(scripts/free-ports.py 127.0.0.1 5)
export WORDLE_URL="http://127.0.0.1:$1"
one=http://127.0.0.1:$2 two=http://127.0.0.1:$3

"$python" examples/trl-wordle/make_model.py "$scratch/base" 2>/dev/null
start env "$python" examples/trl-wordle/env.py --port "$1"
env_pid=$!
for i in 1 2; do
    [ $i = 1 ] && port=$2 agent=$4 || port=$3 agent=$5
    start "vllm-$i" "$python" -m vllm.entrypoints.openai.api_server --model "$scratch/base" \
        --host 127.0.0.1 --port "$port" --dtype bfloat16 --enforce-eager \
        --max-model-len 256 --enable-scale-out \
        --weight-transfer-config '{"backend": "deltawire"}'
    eval "vllm_$i=$!"
    start "follow-$i" build/deltawire follow "$url" --into "$scratch/host-$i" --id "host-$i" \
        --engine "vllm=http://127.0.0.1:$port" --interval 0.5 --listen "127.0.0.1:$agent" --json
done
echo "starting two vLLM servers: a minute or two on two cores"
await env "$WORDLE_URL/healthz" "$env_pid"
# shellcheck disable=SC2154 # set by eval
await vllm-1 "$one/health" "$vllm_1"
# shellcheck disable=SC2154
await vllm-2 "$two/health" "$vllm_2"
echo "one: $one  two: $two  environment: $WORDLE_URL"
echo "stream: $url  (deltawire log $url)"
echo

start train env PYTHONWARNINGS=ignore "$python" examples/trl-wordle/train.py \
    --model "$scratch/base" --url "$url" --servers "$one,$two" \
    --agents "http://127.0.0.1:$4,http://127.0.0.1:$5" \
    --steps "$steps" --lr 2e-3 --batch 16 --generations 8 --tokens 8 --out "$scratch/out"
train=$!
# only its own output: warnings of libraries are in the log
tail -n +1 -F --pid="$train" "$scratch/train.log" 2>/dev/null |
    grep --line-buffered '^  ' &
wait "$train" || fail train
wait $! 2>/dev/null || true

for i in 1 2; do
    build/deltawire verify "$scratch/host-$i" --json |
        sed -n 's/.*"state":"\([0-9a-f]*\)".*/  host-'$i': its directory, state \1/p'
done
