#!/usr/bin/env bash
# A base that is not in its stream is identified by a SHA-256. The digest is linear, so
# somebody who chooses the weights can forge it.
. "$(dirname "$0")/stream_lib.sh"
small_run 2
url=$store/run
deltawire keygen trainer.key --quiet >/dev/null
deltawire publish "$url" run/base --base=run --sign-key trainer.key --quiet >/dev/null
publish_step "$url" 1 --sign-key trainer.key

it "puts the SHA-256 of the base into the record"
deltawire log "$url" --json >out.json
PYTHONPATH=$tests/format python3 -B - <<'END'
import json, pathlib
from base_hash import base_sha256
from decoder import read_checkpoint
first = json.load(open("out.json"))["versions"][-1]
assert first["content"] == "base", first
assert first["base_sha256"] == base_sha256(read_checkpoint(pathlib.Path("run/base"))), first
END

it "accepts the checkpoint itself"
deltawire pull "$url" --into model --base run/base --trust trainer.key.pub --quiet \
    >/dev/null 2>err.txt
is_at model 1
deltawire verify "$url" --base run/base --trust trainer.key.pub --json |
    holds 'len(o["base_sha256"]) == 64 and o["faults"] == []'
fails 5 "another\|but this checkpoint has" deltawire verify "$url" --base run/step_000002

# Another checkpoint of the same digest. Words i and j of a tensor count A[i] and A[j] times
# modulo a prime P. A short vector of the lattice of all (x, y) with x A[i] + y A[j] = 0
# changes both words and not the digest; two numbers of 31 bits are short enough.
cp -r run/base forged
PYTHONPATH=$tests/format python3 -B - <<'END'
import pathlib, struct
from decoder import A, PRIME, read_checkpoint, state_digest, digest, write_safetensors

def short(a, b):
    u, v = (PRIME, 0), (-b * pow(a, -1, PRIME) % PRIME, 1)
    dot = lambda p, q: p[0] * q[0] + p[1] * q[1]
    while True:
        if dot(u, u) > dot(v, v):
            u, v = v, u
        m = (2 * dot(u, v) + dot(u, u)) // (2 * dot(u, u))
        if m == 0:
            return u
        v = (v[0] - m * u[0], v[1] - m * u[1])

path = next(pathlib.Path("forged").glob("*.safetensors"))
tensors = read_checkpoint(pathlib.Path("forged"))
before = state_digest(tensors, {n: digest(t.data) for n, t in tensors.items()})
name = max(tensors, key=lambda n: len(tensors[n].data))
words = list(struct.unpack("<1024I", tensors[name].data[:4096]))
n_changed = 0
for i in range(0, 1024, 2):
    x, y = short(A[i], A[i + 1])
    for x, y in ((x, y), (-x, -y)):
        if 0 <= words[i] + x < 1 << 32 and 0 <= words[i + 1] + y < 1 << 32:
            words[i] += x
            words[i + 1] += y
            n_changed += 2
            break
assert n_changed > 100, n_changed
data = struct.pack("<1024I", *words) + tensors[name].data[4096:]
tensors[name] = tensors[name]._replace(data=data)
assert before == state_digest(tensors, {n: digest(t.data) for n, t in tensors.items()})
write_safetensors(path, tensors)
END
[ "$(state_of forged)" = "$(state_of run/base)" ]

it "refuses a forged checkpoint that has the same digest"
for option in "--trust trainer.key.pub" ""; do
    # shellcheck disable=SC2086
    fails 11 "forged: .*SHA-256" deltawire pull "$url" --into new --base forged $option
    [ ! -e new/model.safetensors ]
done
fails 11 "forged: .*SHA-256" deltawire verify "$url" --base forged

it "does not accept it as version 0 in place either"
unchanged fails 11 "forged: .*SHA-256" deltawire pull "$url" --into forged \
    --trust trainer.key.pub
deltawire pull "$url" --into run/base --trust trainer.key.pub --quiet >/dev/null
is_at run/base 1

it "warns about a stream without the hash, and accepts its base by the digest"
rm -r run model
small_run 2
old=$store/old
deltawire publish "$old" run/base --base=run --quiet >/dev/null
object_edit "$old" "$(commit_key 0)" 'del o["base_sha256"]'
deltawire verify "$old" --json | holds 'o["base_sha256"] is None'
deltawire verify "$old" >out.txt
grep -q 'no SHA-256' out.txt
deltawire pull "$old" --into taken0 --base run/base --quiet >/dev/null
is_at taken0 0
