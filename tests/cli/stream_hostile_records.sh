#!/usr/bin/env bash
# Hostile records, headers and indexes cost little memory and are refused. With trusted
# keys they are not even parsed.
. "$(dirname "$0")/stream_lib.sh"
small_run 2
url=$store/run
deltawire keygen trainer.key --quiet >/dev/null
deltawire publish "$url" run/base --sign-key trainer.key --quiet >/dev/null
publish_step "$url" 1 --sign-key trainer.key
deltawire pull "$url" --into model --trust trainer.key.pub --quiet >/dev/null

# many FILE START END: 20 MiB of small arrays between the two texts
many() {
    python3 - "$@" <<'END'
import sys
path, start, end = sys.argv[1:]
n = (20 << 20) // 3
with open(path, "w") as f:
    f.write(start + "[]," * n + "[]" + end)
END
}

# frugally COMMAND...: runs it with at most 500 MB of memory. Version 0.1 needed 1.6 GB.
frugally() {
    python3 - "$@" <<'END'
import os, subprocess, sys
p = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(p.pid, 0)
if usage.ru_maxrss > 500_000:
    sys.exit("%d KiB of memory" % usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
END
}

id=$(deltawire status "$url" --json | json 'o["stream"]')
head='{"format":"deltawire-stream/1","kind":"commit","stream":"'$id'","x":['

it "refuses a forged record of many values by its missing signature, unparsed"
many forged.json "$head" '],"seal":"0000000000000000"}'
object_put "$url" "$(commit_key 2)" forged.json
keeps model fails 11 "not signed" frugally "$deltawire" pull "$url" --into model \
    --trust trainer.key.pub
echo '{ this is no JSON at all' >forged.json
object_put "$url" "$(commit_key 2)" forged.json
keeps model fails 11 "not signed" deltawire pull "$url" --into model \
    --trust trainer.key.pub

it "refuses it without keys too"
many forged.json "$head" ']}'
object_put "$url" "$(commit_key 2)" forged.json
keeps model fails 3 "neither a seal nor a signature" \
    frugally "$deltawire" pull "$url" --into model

it "reads a header of many values in little memory"
many header.json '{"x":[' ']}'
python3 - <<'END'
import os, struct
os.mkdir("hostile")
text = open("header.json", "rb").read()
with open("hostile/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
END
fails 3 "not an object" frugally "$deltawire" inspect hostile/model.safetensors

it "reads an index of many values in little memory"
mkdir indexed
many indexed/model.safetensors.index.json '{"weight_map":[' ']}'
fails 3 "no weight_map" frugally "$deltawire" inspect indexed

it "refuses a text that is nested too deeply"
python3 -c 'print("{\"weight_map\":" + "[" * 100000 + "]" * 100000 + "}")' \
    >indexed/model.safetensors.index.json
fails 3 "nested too deeply" deltawire inspect indexed
