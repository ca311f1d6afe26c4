#!/usr/bin/env bash
# Files or the directory of a running follower are replaced or removed: it reports that, is
# not ready, and starts over by itself.
. "$(dirname "$0")/stream_lib.sh"
command -v curl >/dev/null || { echo "no curl here: skipped"; exit 77; }
small_run 13
url=$store/run
new_stream "$url" 1

agent=
finish_agent() {
    [ $? -eq 0 ] || tail -n 5 out.agent err.agent
    [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
    finish
}
trap finish_agent EXIT

events() { # NAME: how many
    grep -c "^{\"event\":\"$1\"" out.agent || true
}
has_events() { # NAME N
    [ "$(events "$1")" -ge "$2" ]
}
stands_at() { # VERSION
    [ "$(deltawire verify model --json 2>/dev/null | json 'o["version"]')" = "$1" ]
}
follow() {
    rm -rf model
    env --default-signal=INT "$deltawire" follow "$url" --into model --interval 0.1 --json \
        --listen 127.0.0.1:0 >out.agent 2>err.agent &
    agent=$!
    wait_until has_events version 1
    at=$(json 'o["url"]' <<<"$(grep '"event":"listening"' out.agent)")
}
stop() {
    kill -INT "$agent"
    ends "$agent" 0
    agent=
}
# starts_over COMMAND...: the command removes files; follow reports an error and
# recovers
starts_over() {
    local n_errors n_recovered
    n_errors=$(events error) n_recovered=$(events recovered)
    "$@"
    wait_until has_events error $((n_errors + 1))
    wait_until has_events recovered $((n_recovered + 1))
}

version=1
step() { # the next version comes to the directory that is there now
    version=$((version + 1))
    publish_step "$url" $version
    wait_until stands_at $version
    is_at model $version
}

remove_dir() { rm -rf model; }
move_dir() { mv model "gone$version"; }
replace_dir() { mv model "gone$version" && mkdir model; }
restore_dir() { cp -r model copy && mv model "gone$version" && mv copy model; }
remove_file() { rm "$weights"; }
replace_file() { cp "$weights" new && mv new "$weights"; }
link_file() { ln "$weights" "name$version"; }
remove_block() { rm model/.deltawire/control; }

follow
weights=model/model.safetensors
for harm in move_dir replace_dir restore_dir link_file remove_dir remove_file replace_file \
    remove_block; do
    it "starts over after $harm"
    starts_over $harm
    wait_until stands_at $version
    step
    [ $harm != link_file ] || ! cmp -s "name$((version - 1))" $weights
done

it "is not ready, and claims no version, while somebody else's weights are in the way"
cp run/base/model.safetensors new
python3 - <<'END'
import os
with open("new", "r+b") as f:
    f.seek(-64, os.SEEK_END)
    f.write(b"\x11" * 64)
END
sum=$(sha256sum <new)
mv new model/model.safetensors
wait_until has_events error 3
get() { # PATH
    curl -sS --noproxy '*' --max-time 60 "$at$1"
}
answers() { # PATTERN
    get readyz >out.ready && grep -q "$1" out.ready
}
# the message depends on whether the record of the version was removed before
wait_until answers '^no version: model: \(it holds weights that are neither\|the weights are not version\)'
get status >out.status
holds 'o["follower"]["version"] is None and not o["ready"]' <out.status
wait_until grep -q 'somebody else' out.agent
it "gives the same reason in /readyz, /status and the report to the stream"
same_reason() {
    get readyz >out.ready
    get status | holds 'o["reason"] + "\n" == open("out.ready").read()' || return 1
    deltawire status "$url" --json |
        holds 'any(f["status"] == "error" and "no version: " + f["message"] + "\n"
                == open("out.ready").read() for f in o["followers"])'
}
wait_until same_reason
[ "$sum" = "$(sha256sum <model/model.safetensors)" ] || die "the weights were overwritten"

it "recovers by itself once they are gone"
n=$(events recovered)
rm model/model.safetensors
wait_until has_events recovered $((n + 1))
wait_until stands_at $version
is_at model $version
wait_until answers '^ready'
stop
