#!/usr/bin/env bash
# Damaged deltas: one line that names the file, an exit code, and nothing changed.
. "$(dirname "$0")/lib.sh"
small_run 1
delta=run/deltas/step_000001.safetensors
size=$(stat -c %s $delta)

it "refuses a delta that was cut off anywhere"
for n in 0 1 7 8 100 $((size / 2)) $((size - 1)); do
    head -c "$n" $delta >cut.st
    unchanged fails 3 "cut.st: " deltawire apply cut.st --to run/base
done

it "refuses a delta with bytes after its end"
(cat $delta && echo x) >long.st
unchanged fails 3 "long.st: " deltawire apply long.st --to run/base

it "refuses a delta with a flipped bit anywhere"
for i in $(seq 0 40); do
    cp $delta flipped.st
    flip_bit flipped.st $((i * (size - 1) / 40))
    status=0
    unchanged deltawire apply flipped.st --to run/base >out.txt 2>err.txt || status=$?
    # a flipped bit in the format's name makes it another format: unsupported
    [ $status -eq 3 ] || [ $status -eq 7 ] || die "byte $((i * (size - 1) / 40)): $status"
    grep -q '^deltawire: flipped.st: ' err.txt
    [ "$(wc -l <err.txt)" -eq 1 ]
done

it "names the tensor whose blocks were altered"
cp $delta flipped.st
flip_bit flipped.st $((size - 40))
unchanged fails 3 "flipped.st: tensor 'model\.[a-z0-9._]*': " \
    deltawire apply flipped.st --to run/base

it "reports it in JSON"
deltawire apply flipped.st --to run/base --json >out.json && die "it was applied"
holds 'o["error"]["code"] == "corrupt" and o["error"]["where"] == "flipped.st"' <out.json

it "refuses a directory, a device and a FIFO"
mkfifo fifo
for path in run fifo /dev/null; do
    unchanged fails 2 "$path: " deltawire apply $path --to run/base
done

it "refuses a bad checkpoint by name"
head -c 5000 run/base/model.safetensors >short.safetensors
unchanged fails 3 "short.safetensors: " deltawire apply $delta --to short.safetensors
unchanged fails 3 "short.safetensors: " deltawire verify short.safetensors
unchanged fails 3 "short.safetensors: " deltawire diff run/base short.safetensors -o x
