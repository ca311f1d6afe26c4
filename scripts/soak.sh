#!/usr/bin/env bash
# Tests streams with kills, many followers and damage, for longer than `make test`: half
# of the rounds with a directory, half with a real S3 server (all with a directory if no
# server can be started), then a hundred followers of each; and the loop of
# examples/wordle, whose trainer, servers and environment are killed in turn; and
# an agent with a real vLLM, if DW_TEST_PEERS is set.
#
#     scripts/soak.sh ROUNDS          SEED=n repeats the choices of a run
#
# With each round of kills there are seven rounds of damage with a directory, or one
# with S3: 2,000 if ROUNDS is 500.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=$1
mkdir -p build
{
    cmake --preset release &&
        cmake --build --preset release -j "${JOBS:-$(nproc)}" \
            --target soak_kill soak_many_followers soak_ranks soak_snapshot soak_live deltawire \
            wordle_demo
} >build/soak-build.log 2>&1 || {
    tail -n 25 build/soak-build.log
    exit 1
}

failed=
# After each kill, five more steps: what was killed must be back for the proof at the end.
wordle() { # KILLS
    local dir pid status=0 i who=(wordle-rollout wordle-train wordle-env)
    dir=$(mktemp -d)
    RANDOM=${SEED:-$$}
    HOME=$dir build/examples/wordle/wordle-demo ${DW_TEST_STORE:+--store "$DW_TEST_STORE"} \
        --restart --warmup 60 --steps $((40 * $1 + 40)) --dir "$dir/run" &
    pid=$!
    for ((i = 1; i <= 2 * $1; i++)); do
        until [ "$(grep -cs '"event":"step"' "$dir/run/train.jsonl")" -ge $((i * 5)) ] 2>/dev/null; do
            kill -0 $pid 2>/dev/null || break 2
            sleep 0.1
        done
        pkill -KILL -P $pid -x "${who[RANDOM % ${#who[@]}]}" || true
    done
    wait $pid || status=$?
    rm -rf "$dir"
    return $status
}

soak() { # WHAT ROUNDS
    echo "== kills, over $1: $2 rounds"
    ROUNDS=$2 tests/own_home.sh build/tests/soak/kill || failed="$failed kills over $1;"
    local damages=$(($2 * 7))
    [ -z "${DW_TEST_STORE:-}" ] || damages=$2
    echo "== damage, over $1: $damages rounds"
    ROUNDS=$damages KEEP=1 DELTAWIRE=$PWD/build/deltawire SOAK_LIVE=$PWD/build/tests/soak/live \
        PYTHONDONTWRITEBYTECODE=1 tests/own_home.sh tests/soak/corrupt/corrupt.py ||
        failed="$failed damage over $1;"
    echo "== ranks that lose each other, over $1: $2 starts"
    ROUNDS=$2 build/tests/soak/ranks || failed="$failed ranks over $1;"
    echo "== a hundred followers, over $1"
    tests/own_home.sh build/tests/soak/many_followers || failed="$failed followers over $1;"
    echo "== readers of what is followed, over $1: $(($2 * 4)) versions"
    VERSIONS=$(($2 * 4)) tests/own_home.sh build/tests/soak/snapshot || failed="$failed readers over $1;"
    echo "== a training loop, over $1: $(($2 / 10 + 1)) kills"
    wordle $(($2 / 10 + 1)) || failed="$failed the training loop over $1;"
}

unset DW_TEST_STORE
server=$(mktemp -d)
trap 'tests/servers/radosgw.sh stop "$server" && rm -rf "$server"' EXIT
if tests/servers/radosgw.sh start "$server"; then
    soak "a directory" $((rounds - rounds / 2))
    # shellcheck source=/dev/null
    . "$server/env"
    export DW_TEST_STORE=s3://$DW_TEST_S3_BUCKET/soak AWS_ENDPOINT_URL=$DW_TEST_S3_ENDPOINT
    soak S3 $((rounds / 2))
else
    soak "a directory" "$rounds"
fi

# What users do to models in PyTorch: 10,000 sequences if ROUNDS is 500.
users() { # SEQUENCES
    local venv
    venv=$(scripts/venv.sh torch) && scripts/package.sh >build/soak-package.log 2>&1 || return 1
    SEQUENCES=$1 SEED=${SEED:-$$} PYTHONPATH=$PWD/build-python/site PYTHONDONTWRITEBYTECODE=1 \
        "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/python/test_users.py
}
if [ "${DW_TEST_TORCH:-1}" != 0 ]; then
    echo "== models in PyTorch: $((rounds * 20)) sequences"
    users $((rounds * 20)) || failed="$failed models in PyTorch;"
fi

# An agent with a real vLLM, which is large: only if DW_TEST_PEERS is set.
engine() { # STEPS
    local venv
    venv=$(scripts/venv.sh vllm) && scripts/package.sh >build/soak-package.log 2>&1 || return 1
    STEPS=$1 SEED=${SEED:-$$} DELTAWIRE=$PWD/build/deltawire OMP_NUM_THREADS=1 \
        PYTHONPATH=$PWD/build-python/site PYTHONDONTWRITEBYTECODE=1 \
        "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/peers/test_vllm_truth.py -k random
}
if [ -n "${DW_TEST_PEERS:-}" ]; then
    echo "== an agent with a real vLLM: $((rounds / 5 + 1)) steps"
    engine $((rounds / 5 + 1)) || failed="$failed an agent with a real vLLM;"
fi
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
