#!/usr/bin/env bash
# labels: slow servers
# A store that cannot create conditionally, such as OpenStack Swift: a publish is
# refused unless the user confirms that nobody else writes. DW_TEST_STORE names the
# store; with any other kind this is skipped (77).
# shellcheck source=tests/cli/stream_lib.sh
. "$(dirname "$0")/../cli/stream_lib.sh"
[ "${DW_TEST_S3_SERVER:-}" = swift ] || {
    echo "skipped: DW_TEST_S3_SERVER is not swift; scripts/test.sh servers starts one"
    exit 77
}
small_run 3
url=$store/run

it "refuses to publish, and names the option"
fails 7 "cannot create an object only if it does not exist" deltawire publish "$url" run/base
grep -q -- "--single-writer" err.last || die "no way out: $(cat err.last)"
fails 6 "no stream" deltawire pull "$url" --into never
deltawire check "$url" >out.check
grep -q '^  publisher .*: publish needs --single-writer$' out.check

it "publishes with --single-writer"
deltawire publish "$url" run/base --single-writer --quiet >/dev/null
deltawire pull "$url" --into model --quiet >/dev/null
is_at model 0
for i in 1 2 3; do
    publish_step "$url" $i --single-writer
    deltawire pull "$url" --into model --quiet >/dev/null
    is_at model $i
done

it "needs the option at every start"
fails 7 "" deltawire publish "$url" run/base
deltawire status "$url" --json | holds 'o["head"] == 3'

it "the stream is intact, and folds and anchors are made"
deltawire verify "$url" --json | holds 'o["versions"] == 4 and o["faults"] == []'
deltawire compact "$url" --anchor --quiet >/dev/null
deltawire gc "$url" --keep 1 --json | holds 'o["floor"] == 3'
deltawire pull "$url" --into late --quiet >/dev/null
is_at late 3
deltawire verify "$url" --json | holds 'o["faults"] == []'
