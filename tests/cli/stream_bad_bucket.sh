#!/usr/bin/env bash
# Faults of a store: the error names the fault and the next step, and the follower's
# directory does not change.
. "$(dirname "$0")/stream_lib.sh"
small_run 4
good=$store/good
deltawire publish "$good" run/base --fold none --quiet >/dev/null
publish_step "$good" 1 --fold none
deltawire pull "$good" --into model --quiet >/dev/null
for i in 2 3 4; do
    publish_step "$good" "$i" --fold none
done

# broken NAME: makes a copy of the good stream to damage
broken() {
    url=$store/$1
    deltawire cp "$good" "$url" --quiet >/dev/null
}
# refuses CODE PATTERN: pull fails, and the directory stays
refuses() {
    keeps model fails "$1" "$2" deltawire pull "$url" --into model
    grep -q "^deltawire: .*$url" err.last || die "no URL in: $(cat err.last)"
    is_at model 1
}

# lists_once PATTERN: the last verify printed exactly one matching line, on stdout
lists_once() {
    [ "$(grep -c "^fault: .*$1" out.last)" -eq 1 ] || die "not once '$1': $(cat out.last)"
    grep -q "$1" err.last && die "twice: $(cat err.last)"
    true
}

it "an empty one"
url=$store/nothing
refuses 6 "no stream"
fails 6 "$url" deltawire log "$url"
fails 6 "$url" deltawire status "$url"
fails 6 "$url" deltawire verify "$url"
fails 6 "$url" deltawire gc "$url" --keep 1
fails 6 "$url" deltawire compact "$url" --anchor
fails 6 "$url" deltawire cp "$url" "$store/x"

it "a URL with a secret in it, which is not shown"
secret='s3://KEYID:SECRET@bucket/run'
for command in "log $secret" "status $secret" "verify $secret" "pull $secret --into never" \
    "follow $secret --into never" "cp $good $secret" "cp $secret $good" "gc $secret --keep 1" \
    "compact $secret --anchor" "publish $secret run/base" "publish $secret --watch run" \
    "publish $store/new run/base --fork $secret"; do
    # shellcheck disable=SC2086
    fails 2 "URL" deltawire $command
    # shellcheck disable=SC2086
    deltawire $command --json >>err.last 2>&1 && die "taken: $command"
    grep -q SECRET err.last && die "shown by $command: $(cat err.last)"
done

it "a prefix with letters that cannot be used"
for command in "log" "status" "verify" "pull --into never" "follow --into never"; do
    # shellcheck disable=SC2086
    fails 2 "letters, digits and -_./=+@" deltawire ${command%% *} 's3://bucket/my run' \
        ${command#"${command%% *}"}
done

it "one without a version yet"
broken early
for key in $(object_list "$url" commits/); do object_remove "$url" "$key"; done
object_remove "$url" latest.json
deltawire status "$url" --json | holds 'o["head"] is None'
fails 6 "$url" deltawire pull "$url" --into never
refuses 11 "version 1, which the weights in model used, is missing"

it "a half-written version is none"
broken half
object_remove "$url" "$(commit_key 4)"
object_remove "$url" latest.json
cp -r model half
deltawire pull "$url" --into half --quiet >/dev/null
is_at half 3

it "another version of the format"
broken format
object_edit "$url" stream.json 'o["format"] = "deltawire-stream/9"'
refuses 7 "deltawire-stream/9"
broken requires
object_edit "$url" stream.json 'o["requires"] = ["holograms"]'
refuses 7 "holograms"

it "another model"
url=$store/zeros
make_checkpoint zeros.safetensors '{"b": [3], "a": [2]}'
deltawire publish "$url" zeros.safetensors --quiet >/dev/null
keeps model fails 5 "model: .* another model" deltawire pull "$url" --into model

it "another run of the same model"
url=$store/second
deltawire synth -o second --params 300K --steps 1 --seed 5 --json >/dev/null
deltawire publish "$url" second/base --quiet >/dev/null
keeps model fails 5 "model: the weights are version 1 of stream" \
    deltawire pull "$url" --into model

it "an object that is missing"
broken missing
key=$(object_of "$url" 2)
object_remove "$url" "$key"
refuses 6 "$key"
fails 6 "1 fault was found" deltawire verify "$url"
lists_once "$key: the object is missing"

it "an object that was altered"
broken altered
key=$(object_of "$url" 2)
object_get "$url" "$key" bytes
flip_bit bytes $(($(stat -c %s bytes) / 2))
object_put "$url" "$key" bytes
refuses 3 "$key"
grep -q "^try: deltawire verify $url$" err.last
fails 3 "1 fault was found" deltawire verify "$url"
lists_once "$key"

it "an object that was cut short"
head -c 100 bytes >short
object_put "$url" "$key" short
refuses 3 "$key"

it "a record that is no JSON"
broken junk
echo junk >bytes
object_put "$url" "$(commit_key 2)" bytes
refuses 3 "$(commit_key 2)"

it "a record with a bit that flipped"
broken flipped
object_get "$url" "$(commit_key 2)" bytes
flip_bit bytes $(($(grep -ob parent_sha256 bytes | cut -d: -f1) + 20))
object_put "$url" "$(commit_key 2)" bytes
refuses 3 "$(commit_key 2).*seal does not match"

it "a history that was rewritten"
broken rewritten
object_edit "$url" "$(commit_key 1)" 'o["notes"] = "another history"'
keeps model fails 11 "" deltawire pull "$url" --into model
fails 11 "" deltawire verify "$url"
broken forked
object_edit "$url" "$(commit_key 2)" 'o["parent_sha256"] = "0" * 64'
refuses 11 "2"

it "a stream that went back"
broken back
for i in 1 2 3 4; do object_remove "$url" "$(commit_key $i)"; done
object_remove "$url" latest.json
keeps model deltawire pull "$url" --into model >out.txt 2>err.txt && die "took a shorter history"
grep -q "$url" err.txt

it "every fault is listed by verify"
broken many
for i in 2 4; do
    key=$(object_of "$url" $i)
    object_get "$url" "$key" bytes
    flip_bit bytes 300
    object_put "$url" "$key" bytes
done
deltawire verify "$url" --json >out.json && die "faults passed"
holds 'len(o["faults"]) >= 2 and o["error"]["code"] == "corrupt"' <out.json

it "a damaged baseline"
find cache -name '*.safetensors' | while read -r file; do
    chmod u+w "$file"
    flip_bit "$file" $(($(stat -c %s "$file") - 7))
done
deltawire publish "$good" run/step_000001 --quiet >/dev/null
deltawire pull "$good" --into model --quiet >/dev/null
[ "$(state_of model)" = "$(state_at 1)" ]

if ! is_file_store; then
    it "credentials that are refused"
    url=$good
    (
        export AWS_SECRET_ACCESS_KEY=wrong
        keeps model fails 10 "" deltawire pull "$good" --into model
        grep -q wrong err.last && die "a secret in a message"
        true
    )
    it "a bucket that is not there"
    none=s3://no-such-bucket-here/run
    missing="there is no bucket 'no-such-bucket-here'. Create it"
    for verb in log status verify "gc --keep 1" "compact --anchor"; do
        # shellcheck disable=SC2086
        fails 9 "$missing" deltawire ${verb%% *} $none ${verb#"${verb%% *}"}
    done
    fails 9 "$missing" deltawire pull $none --into absent
    fails 9 "$missing" deltawire publish $none run/base
    fails 9 "$missing" deltawire cp "$good" $none
    [ ! -e absent ] || die "a directory was made"
    it "follow reports a missing bucket, and waits for it"
    env --default-signal=INT "$deltawire" follow $none --into absent 2>err.follow &
    follower=$!
    wait_until grep -qF "$missing" err.follow
    kill -INT $follower
    ends $follower 0
    grep -q "no stream" err.follow && die "a missing bucket is taken for a missing stream"
    it "a server that is not there"
    fails 9 "" deltawire pull "$good" --into never --endpoint http://127.0.0.1:9 --timeout 1
    fails 2 "timeout" deltawire pull "$good" --into never --timeout 0
fi
