#!/usr/bin/env bash
# Commits and epochs record the version of the library and the writer's machine.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
host=$(python3 -c 'import socket; print(socket.gethostname())')
library=$(deltawire --version | awk 'NR == 1 { print $2 }')
epoch_key() { printf 'epochs/%010d.json' "$1"; }

it "records both in commits and epochs"
new_stream "$url" 1
for key in "$(commit_key 0)" "$(commit_key 1)" "$(epoch_key 1)" "$(epoch_key 2)"; do
    object_get "$url" "$key" record.json
    holds "(o['library'], o['host']) == ('$library', '$host')" <record.json
done

it "shows them in log --json and status"
deltawire log "$url" --json >out.log
holds "all((v['library'], v['host']) == ('$library', '$host') for v in o['versions'])" <out.log
deltawire status "$url" --json >out.status
holds "o['writer'] == {'epoch': 2, 'library': '$library', 'host': '$host'}" <out.status
prints "^  writer     epoch 2, deltawire $library, host $host\$" deltawire status "$url"

it "leaves them out on request"
publish_step "$url" 2 --no-provenance
for key in "$(commit_key 2)" "$(epoch_key 3)"; do
    object_get "$url" "$key" record.json
    holds "'library' not in o and 'host' not in o" <record.json
done
deltawire log "$url" -n 1 --json >out.log
holds "'library' not in o['versions'][0] and 'host' not in o['versions'][0]" <out.log
deltawire status "$url" --json >out.status
holds "o['writer'] == {'epoch': 3}" <out.status
deltawire status "$url" >out.status
[ "$(grep -c writer out.status)" -eq 0 ] || die "$(cat out.status)"

it "leaves them out of a repair and a mirror on request"
deltawire repair "$url" run/step_000003 --no-provenance --quiet >/dev/null
deltawire mirror "$url" "$store/trl" --as trl --once --work work-trl --quiet >/dev/null
deltawire mirror "$store/trl" "$store/mirror" --once --work work --no-provenance --quiet \
    >/dev/null
for u in "$url" "$store/mirror"; do
    deltawire log "$u" -n 1 --json >out.log
    holds "'host' not in o['versions'][0]" <out.log
done
deltawire repair "$url" run/step_000003 --quiet >/dev/null
deltawire log "$url" -n 1 --json >out.log
holds "o['versions'][0]['host'] == '$host'" <out.log

it "shows a forged host without control characters"
new_stream "$store/forged" 1
object_edit "$store/forged" "$(commit_key 1)" \
    'o["host"] = "\x1b]0;x\x07\u009b2J\u202egood\r" + "h" * 3000; o["library"] = "\x1b[2J9"'
deltawire status "$store/forged" >out.status
deltawire status "$store/forged" --json >out.status.json
deltawire log "$store/forged" --json >out.log
python3 - <<'END'
import json
text = open("out.status", "rb").read().decode()
assert "deltawire ?[2J9, host ?]0;x??2J?good?hhh" in text, text
assert all(c == "\n" or c.isprintable() for c in text), text
row = json.load(open("out.log"))["versions"][0]
assert len(row["host"]) == 255 and row["host"].isprintable(), row
assert json.load(open("out.status.json"))["writer"]["host"] == row["host"]
END

it "follows a stream whose commits say nothing, or something else, about the writer"
object_edit "$store/forged" "$(commit_key 1)" 'del o["library"]; o["host"] = ""'
deltawire pull "$store/forged" --into model --quiet >/dev/null
is_at model 1
