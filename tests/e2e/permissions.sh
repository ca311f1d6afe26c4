#!/usr/bin/env bash
# labels: slow servers
# The policies of docs/STORES.md are enough for each role, and allow no more. The
# server's second user, who has no rights of its own, gets them as the bucket's policy.
# shellcheck source=tests/cli/stream_lib.sh
. "$(dirname "$0")/../cli/stream_lib.sh"
[ "${DW_TEST_S3_SERVER:-}" = radosgw ] || {
    echo "skipped: DW_TEST_S3_SERVER is not radosgw; scripts/test.sh servers starts one"
    exit 77
}
# A bucket has one policy: this test needs one of its own.
bucket=deltawire-policies-$$
s3 PUT "$bucket" >/dev/null
url=s3://$bucket/run

# grant N: the N-th policy in the document that is for a role
grant() {
    python3 - "$tests/../docs/STORES.md" "$1" "$bucket" >policy.json <<'END'
import json, re, sys
blocks = re.findall(r"```json\n(.*?)```", open(sys.argv[1]).read(), re.S)
policies = [p for p in map(json.loads, blocks) if "Statement" in p]
policy = policies[int(sys.argv[2])]
for statement in policy["Statement"]:
    statement["Principal"] = {"AWS": ["arn:aws:iam:::user/denied"]}
print(json.dumps(policy).replace("BUCKET", sys.argv[3]))
END
    s3 PUT "$bucket?policy=" policy.json >/dev/null
}
as_other() {
    env AWS_ACCESS_KEY_ID="$DW_TEST_S3_DENIED_ACCESS_KEY_ID" \
        AWS_SECRET_ACCESS_KEY="$DW_TEST_S3_DENIED_SECRET_ACCESS_KEY" "$deltawire" "$@"
}
small_run 3

it "may do nothing without a policy"
fails 10 "" as_other publish "$url" run/base

it "as a trainer publishes and pulls, and removes nothing"
grant 0
as_other check "$url" --json | holds 'o["publisher"]["ok"] and o["create_once"]["ok"]'
as_other publish "$url" run/base --quiet >/dev/null
for i in 1 2; do
    as_other publish "$url" "run/step_00000$i" --anchor-every 2 --fold 2 --quiet >/dev/null
done
as_other pull "$url" --into model --quiet >/dev/null
is_at model 2
as_other compact "$url" --anchor --quiet >/dev/null
fails 10 "" as_other gc "$url" --keep 1
as_other verify "$url" --json | holds 'o["faults"] == [] and o["versions"] == 3'

it "as a follower reads and reports, and publishes nothing"
grant 1
as_other follow "$url" --into model --until 2 --id engine --quiet
as_other pull "$url" --into fresh --quiet >/dev/null
is_at fresh 2
as_other verify "$url" --quiet >/dev/null
as_other status "$url" --json | holds 'o["followers"][0]["id"] == "engine"'
fails 10 "" as_other publish "$url" run/step_000003
fails 10 "" as_other gc "$url" --keep 1
as_other check "$url" --json |
    holds 'o["follower"]["ok"] and o["write"]["error"]["code"] == "denied"'

it "as a collector collects, and publishes nothing"
grant 2
as_other gc "$url" --keep 1 --json | holds 'o["floor"] == 2'
as_other gc "$url" --forget engine --quiet >/dev/null
fails 10 "" as_other publish "$url" run/step_000003

it "the stream is intact after all of that"
grant 0
as_other verify "$url" --json | holds 'o["faults"] == []'
as_other publish "$url" run/step_000003 --quiet >/dev/null
as_other pull "$url" --into fresh --quiet >/dev/null
is_at fresh 3
