#!/usr/bin/env bash
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run

it "makes a key that only its owner can read"
deltawire keygen trainer.key >out.txt
[ "$(stat -c %a trainer.key)" = 600 ]
key=$(cat trainer.key.pub)
[[ $key =~ ^deltawire-key:[0-9a-f]{64}$ ]]
[ "$(head -n 1 out.txt)" = "$key" ]
grep -q '^deltawire publish URL CKPT --sign-key trainer.key$' out.txt
grep -q "^deltawire pull URL --into DIR --trust $key$" out.txt
deltawire keygen other.key --json | holds 'o["key"].startswith("deltawire-key:")'

it "never overwrites a key"
unchanged fails 8 "trainer.key" deltawire keygen trainer.key
rm other.key
unchanged fails 8 "other.key.pub" deltawire keygen other.key
rm other.key.pub
deltawire keygen other.key --quiet >/dev/null

it "signs what it publishes"
deltawire publish "$url" run/base --sign-key trainer.key --quiet >/dev/null
publish_step "$url" 1 --sign-key trainer.key
deltawire log "$url" --json | holds "all(v['key'] == '$key' for v in o['versions'])"
prints " ${key:14:8} " deltawire log "$url" -n 1

it "accepts a trusted key, as text or as a file"
deltawire pull "$url" --into model --trust trainer.key.pub --quiet >/dev/null
deltawire pull "$url" --into model2 --trust "$key" --trust other.key.pub --quiet >/dev/null
is_at model 1
is_at model2 1
deltawire verify "$url" --trust trainer.key.pub --json | holds 'o["faults"] == []'

it "refuses every other key"
keeps model fails 11 "$url" deltawire pull "$url" --into model --trust other.key.pub
grep -q "^try: deltawire log $url$" err.last
fails 11 "" deltawire verify "$url" --trust other.key.pub
fails 11 "" deltawire follow "$url" --into new --trust other.key.pub
[ ! -e new/model.safetensors ]

it "refuses versions that are signed by another key or not signed, and stays at its version"
publish_step "$url" 2 --sign-key other.key --new-key
keeps model fails 11 "version 2\|$(printf '%020d' 2)" \
    deltawire pull "$url" --into model --trust trainer.key.pub
is_at model 1
publish_step "$url" 3 --new-key
keeps model fails 11 "" deltawire pull "$url" --into model --trust trainer.key.pub

it "refuses to publish on top of what it does not trust"
fails 11 "" deltawire publish "$url" run/step_000001 --sign-key trainer.key --trust trainer.key.pub

it "finds a record that was altered after it was signed"
new=$store/altered
deltawire publish "$new" run/base --sign-key trainer.key --quiet >/dev/null
publish_step "$new" 1 --sign-key trainer.key
object_edit "$new" "$(commit_key 1)" 'o["notes"] = "not what was signed"'
fails 11 "" deltawire pull "$new" --into never
fails 11 "" deltawire verify "$new"

it "reports what is wrong with a key"
fails 6 "nokey" deltawire publish "$url" run/base --sign-key nokey
grep -q '^try: deltawire keygen nokey$' err.last
chmod 644 trainer.key
fails 2 "trainer.key: .*chmod 600" deltawire publish "$url" run/base --sign-key trainer.key
echo junk >junk.pub
fails 3 "junk.pub: no public key" deltawire pull "$url" --into x --trust junk.pub
