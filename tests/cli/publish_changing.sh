#!/usr/bin/env bash
# A checkpoint that is overwritten in place while it is published. A publish that
# notices it fails before the commit. Every committed version decodes.
. "$(dirname "$0")/stream_lib.sh"
deltawire synth -o run --params 8M --steps 1 --json >/dev/null
url=$store/run
mkdir save
cp run/base/model.safetensors save/

# overwrite: writes to the weights until it is killed
overwrite() {
    "$python" - save/model.safetensors <<'END' &
import os, random, struct, sys
parent = os.getppid()
f = os.open(sys.argv[1], os.O_RDWR)
start = 8 + struct.unpack("<Q", os.pread(f, 8, 0))[0]
n = os.fstat(f).st_size - start
while os.getppid() == parent:
    os.pwrite(f, random.randbytes(1 << 14), start + random.randrange(n - (1 << 14)))
END
    writer=$!
}

# head: the newest version, -1 while there is none
head() {
    if deltawire status "$url" --json >status.json 2>/dev/null; then
        json '-1 if o["head"] is None else o["head"]' <status.json
    else
        echo -1
    fi
}

# refused: publishes until a publish is refused. Each version that was committed before
# that must reach a follower.
refused() {
    local before
    for _ in $(seq 200); do
        before=$(head)
        if deltawire publish "$url" save --quiet 2>err.last >/dev/null; then
            deltawire pull "$url" --into pulled --quiet >/dev/null
            continue
        fi
        grep -q 'save/model.safetensors: the file changed while it was read' err.last ||
            die "$(cat err.last)"
        [ "$(head)" = "$before" ] || die "refused, and committed all the same"
        return 0
    done
    die "never refused"
}

it "refuses version 0"
overwrite
refused
kill $writer
wait $writer || true

it "publishes it when nobody writes any more"
deltawire publish "$url" save --quiet >/dev/null
first=$(head)

it "refuses the next version, and commits nothing that does not decode"
overwrite
for _ in 1 2 3; do
    refused
done
kill $writer
wait $writer || true

it "goes on when nobody writes any more"
deltawire publish "$url" save --quiet >/dev/null
[ "$(head)" -gt "$first" ]
deltawire pull "$url" --into pulled --quiet >/dev/null
cmp pulled/model.safetensors save/model.safetensors ||
    [ "$(state_of pulled)" = "$(state_of save)" ]
deltawire verify "$url" >/dev/null
