#!/usr/bin/env bash
# Companion files in the directories of pull and follow: installed with a version, removed
# if a newer one drops them; files of the user's stay.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run

# with_files CKPT TEXT NAME...: files beside the weights
with_files() {
    local dir=$1 text=$2 name
    shift 2
    for name; do echo "[\"$text $name\"]" >"$dir/$name"; done
}

# has DIR TEXT NAME...
has() {
    local dir=$1 text=$2 name
    shift 2
    for name; do [ "$(cat "$dir/$name")" = "[\"$text $name\"]" ] || die "$dir/$name"; done
}

with_files run/base 0 config.json tokenizer.json vocab.json
with_files run/step_000001 0 config.json tokenizer.json vocab.json
with_files run/step_000002 2 config.json tokenizer.json
deltawire publish "$url" run/base --quiet
deltawire publish "$url" run/step_000001 --quiet

it "installs them in an empty directory"
deltawire pull "$url" --into m --json |
    holds 'o["files_installed"] == 3 and o["files_removed"] == 0 and o["files_kept"] == []'
has m 0 config.json tokenizer.json vocab.json
is_at m 1
deltawire pull "$url" --into m >out.m
grep -q ': nothing new$' out.m

it "verifies weights whose record is behind: it is written last"
cp -r m behind
python3 -B - "$tests/format" <<'END'
import json, sys
sys.path.insert(0, sys.argv[1])
from decoder import xxh64
name = "behind/.deltawire/state.json"
o = json.load(open(name))
del o["seal"]
o["next"] = {key: o[key] for key in ("stream", "version", "commit_sha256", "state")}
o.update(version=0, state="0" * 16, seal="0" * 16)
text = json.dumps(o, separators=(",", ":"))
blank = '"seal":"' + "0" * 16
sealed = text.replace(blank, '"seal":"%016x' % xxh64(text.encode()))
open(name, "w").write(sealed)
END
deltawire verify behind --json | holds 'o["version"] == 1'

it "verifies them with the weights"
deltawire verify m --json | holds 'o["files"] == 3 and o["faults"] == []'
cp -r m damaged
rm damaged/tokenizer.json
fails 6 'damaged: 1 companion file is not as installed: damaged/tokenizer.json$' \
    deltawire verify damaged
grep -q '^fault: damaged/tokenizer.json: the companion file is missing: pull again' out.last
echo edited >>damaged/config.json
rm damaged/vocab.json
ln -s ../m/vocab.json damaged/vocab.json
fails 3 'damaged: 3 companion files are not as installed, damaged/config.json and others' \
    deltawire verify damaged
grep -q '^fault: damaged/config.json: the companion file was changed' out.last
grep -q '^fault: damaged/vocab.json: the companion file was changed' out.last
deltawire verify damaged --json >out.json && die "exit code 0"
holds '[f["where"] for f in o["faults"]] == [
    "damaged/" + n for n in ("config.json", "tokenizer.json", "vocab.json")]' <out.json
# files that are changed become the user's with the next pull, and the missing one comes back
deltawire pull "$url" --into damaged --quiet 2>/dev/null
deltawire verify damaged --json | holds 'o["files"] == 1 and o["faults"] == []'
grep -q edited damaged/config.json

it "completes a directory that lacks some"
rm m/tokenizer.json
deltawire pull "$url" --into m >out.m
grep -q ': weights unchanged; 1 file installed$' out.m
has m 0 tokenizer.json

it "does not if asked so"
deltawire pull "$url" --into plain --no-files --json | holds 'o["files_installed"] == 0'
[ ! -e plain/config.json ]
deltawire follow "$url" --into plain --until 1 --no-report --json >out.plain
grep '"event": *"files"' out.plain >out.event
holds 'o["files_installed"] == 3 and o["steps"] == 0' <out.event
has plain 0 config.json

it "keeps the user's files, and says what to do"
mkdir own
echo mine >own/config.json
ln -s config.json own/vocab.json
deltawire pull "$url" --into own >out.own 2>err.own
grep -q '; 1 file installed$' out.own
grep -q 'warning: own/config.json: it is not the version.s file.*Remove it' err.own
grep -q 'warning: own/vocab.json' err.own
[ "$(cat own/config.json)" = mine ] && [ -L own/vocab.json ]
echo edited >>m/config.json
deltawire pull "$url" --into m --json | holds 'o["files_kept"] == ["m/config.json"]'

it "goes on to a version that replaces and drops files"
deltawire follow "$url" --into follow --until 2 --no-report --interval 1 >out.follow &
follower=$!
deltawire publish "$url" run/step_000002 --quiet
wait "$follower"
grep -q 'files\? installed' out.follow
has follow 2 config.json tokenizer.json
[ ! -e follow/vocab.json ]
deltawire pull "$url" --into m >out.m 2>err.m
grep -q '; 1 file installed, 1 removed$' out.m
grep -q 'warning: m/config.json' err.m
grep -q edited m/config.json
rm m/config.json
deltawire pull "$url" --into m --quiet
has m 2 config.json tokenizer.json

it "goes back"
deltawire pull "$url" --into m --at 0 --quiet
has m 0 config.json tokenizer.json vocab.json

it "changes nothing if a file is missing from the stream"
deltawire pull "$url" --into m --at 1 --quiet
for key in $(object_list "$url" files/00000000000000000002-); do
    object_remove "$url" "$key"
done
fails 6 "version 2, companion file 'config.json'" deltawire pull "$url" --into m
has m 0 config.json tokenizer.json vocab.json
is_at m 1
deltawire pull "$url" --into m --no-files --quiet
is_at m 2

it "changes nothing if a file does not fit on the disk, and completes it later"
python3 -c 'import json; print(json.dumps(["x" * 400000]))' >run/step_000003/tokenizer.json
echo '["new config.json"]' >run/step_000003/config.json
deltawire publish "$store/large" run/base --quiet
deltawire pull "$store/large" --into small --quiet
deltawire publish "$store/large" run/step_000003 --quiet
cp -r small before
fails 6 "small/.*cannot write" bash -c 'ulimit -f 200; exec "$@"' - \
    "$deltawire" pull "$store/large" --into small
is_at small 0
for name in model.safetensors config.json tokenizer.json; do cmp before/$name small/$name; done
deltawire pull "$store/large" --into small --quiet
cmp small/tokenizer.json run/step_000003/tokenizer.json
cmp small/config.json run/step_000003/config.json
same_weights small run/step_000003

it "removes what a kill left, also with --no-files"
echo half >small/.deltawire/file.tmp-3
echo half >small/.deltawire/state.json.tmp-1-2
deltawire pull "$store/large" --into small --no-files --quiet
[ ! -e small/.deltawire/file.tmp-3 ] && [ ! -e small/.deltawire/state.json.tmp-1-2 ]
deltawire verify small --quiet >/dev/null
