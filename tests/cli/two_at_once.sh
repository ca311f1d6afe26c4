#!/usr/bin/env bash
# Two applies to one checkpoint: one may be refused, but the weights are never mixed.
. "$(dirname "$0")/lib.sh"
deltawire synth -o run --params 2M --steps 1 --write both --json >/dev/null
delta=run/deltas/step_000001.safetensors

it "keeps two applies apart"
conflicts=0
for _ in $(seq 15); do
    rm -rf model
    cp -r run/base model
    "$deltawire" apply $delta --to model >/dev/null 2>err1 &
    first=$!
    "$deltawire" apply $delta --to model/model.safetensors >/dev/null 2>err2 &
    second=$!
    status1=0 status2=0
    wait $first || status1=$?
    wait $second || status2=$?
    case $status1,$status2 in
    0,0) ;;
    0,8 | 8,0) conflicts=$((conflicts + 1)) ;;
    *) die "exit codes $status1 and $status2: $(cat err1 err2)" ;;
    esac
    same_weights model run/step_000001
    [ "$(ls -A model)" = model.safetensors ]
done
echo "  ($conflicts of 15 pairs had one refused)"

it "refuses while another apply holds the checkpoint"
rm -rf model
cp -r run/base model
exec 9<model/model.safetensors
flock 9
unchanged fails 8 "model: another process is applying" deltawire apply $delta --to model
unchanged fails 8 "another process" deltawire recover model
