#!/usr/bin/env bash
# labels: slow
# An apply that is killed at any instant is finished by the next one.
. "$(dirname "$0")/lib.sh"
deltawire synth -o run --params 8M --steps 2 --lr 1e-5 --write both --json >/dev/null
there=run/deltas/step_000002.safetensors
deltawire diff run/step_000002 run/step_000001 -o back.st >/dev/null

patch=model/.deltawire/model.safetensors.patch

it "survives kill -9 at random instants, and while it writes"
cp -r run/step_000001 model
started=$(date +%s%N)
deltawire apply $there --to model >/dev/null
took_ms=$((($(date +%s%N) - started) / 1000000 + 1))
deltawire apply back.st --to model >/dev/null
finished=0 before=0 during=0
for round in $(seq 20); do
    "$deltawire" apply $there --to model >/dev/null 2>&1 &
    if [ $((round % 2)) -eq 0 ]; then
        sleep "$(printf '0.%03d' $((RANDOM % took_ms)))"
    else
        while [ ! -e $patch ] && kill -0 $! 2>/dev/null; do :; done
    fi
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    if [ -e $patch ]; then
        during=$((during + 1))
        fails 1 "interrupted" deltawire verify model
    elif same_weights model run/step_000002 2>/dev/null >&2; then
        finished=$((finished + 1))
    else
        before=$((before + 1))
        same_weights model run/step_000001
    fi
    deltawire apply $there --to model >/dev/null
    same_weights model run/step_000002
    [ ! -e $patch ]
    deltawire apply back.st --to model >/dev/null
    same_weights model run/step_000001
done
echo "  (killed before the first store: $before, during: $during, after: $finished)"

it "recovers by itself too"
until [ -e $patch ]; do
    "$deltawire" apply $there --to model >/dev/null 2>&1 &
    while [ ! -e $patch ] && kill -0 $! 2>/dev/null; do :; done
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    # it was too late: start again
    [ -e $patch ] || deltawire apply back.st --to model >/dev/null
done
deltawire recover model --threads 3 --json | holds 'o["recovered"]'
same_weights model run/step_000002

it "cleans up after Ctrl-C"
rm -rf model/.deltawire # left by the kills
deltawire apply back.st --to model >/dev/null
stopped=0
for _ in $(seq 20); do
    env --default-signal=INT "$deltawire" apply $there --to model >/dev/null 2>&1 &
    sleep "$(printf '0.%03d' $((RANDOM % took_ms)))"
    kill -INT $! 2>/dev/null || true
    status=0
    wait $! || status=$?
    [ "$(ls -A model)" = model.safetensors ]
    if [ $status -eq 130 ]; then
        stopped=$((stopped + 1))
        same_weights model run/step_000001
    else
        [ $status -eq 0 ]
        same_weights model run/step_000002
        deltawire apply back.st --to model >/dev/null
    fi
done
echo "  (stopped before the first store: $stopped of 20)"
