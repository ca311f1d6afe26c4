#!/usr/bin/env bash
# A key may sign many streams: a directory stays with its own stream until its user names
# another, and a stream stays with its key.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
deltawire keygen trainer.key --quiet >/dev/null
deltawire keygen other.key --quiet >/dev/null
deltawire publish "$url" run/base --sign-key trainer.key --quiet >/dev/null
publish_step "$url" 1 --sign-key trainer.key
id=$(deltawire status "$url" --json | json 'o["stream"]')
wrong=00000000000000000000000000000000

it "accepts only the stream that is named"
deltawire pull "$url" --into model --trust trainer.key.pub --stream "$id" --quiet >/dev/null
is_at model 1
keeps model fails 11 "this is stream $id, not stream $wrong" \
    deltawire pull "$url" --into model --stream $wrong
for verb in status log verify "gc --keep 9"; do
    deltawire $verb "$url" --stream "$id" >/dev/null
    fails 11 "not stream $wrong" deltawire $verb "$url" --stream $wrong
done
fails 11 "not stream $wrong" deltawire cp "$url" "$store/copy" --stream $wrong
fails 11 "not stream $wrong" deltawire compact "$url" --anchor --stream $wrong
fails 11 "not stream $wrong" deltawire follow "$url" --into new --stream $wrong
unchanged fails 11 "not stream $wrong" deltawire publish "$url" run/step_000002 \
    --sign-key trainer.key --stream $wrong
fails 2 "32 digits" deltawire pull "$url" --into model --stream abc

it "does not create a stream with a given id: ids are random"
fails 6 "no stream here" deltawire publish "$store/none" run/base --stream "$id"

it "refuses a fork in the place of its stream, though the same key signed it"
deltawire publish "$store/fork" run/step_000002 --fork "$url@1" --sign-key trainer.key \
    --quiet >/dev/null
fork=$(deltawire status "$store/fork" --json | json 'o["stream"]')
keeps model fails 8 "stream $id, but .* is now stream $fork, a fork of it.*with --stream: $fork" \
    deltawire pull "$store/fork" --into model --trust trainer.key.pub

it "changes to it if it is named, and remembers that"
deltawire pull "$store/fork" --into model --trust trainer.key.pub --stream "$fork" \
    --quiet >/dev/null
deltawire verify model >/dev/null
deltawire pull "$store/fork" --into model --trust trainer.key.pub --quiet >/dev/null
keeps model fails 5 "stream $fork, but .* is now stream $id" \
    deltawire pull "$url" --into model --trust trainer.key.pub

it "goes on with a fork whose first pull ended on the way over its source"
object=$(object_of "$url" 1)
object_get "$url" "$object" kept
object_remove "$url" "$object"
fails 6 "" deltawire pull "$store/fork" --into half --trust trainer.key.pub
object_put "$url" "$object" kept
[ "$(json 'o["stream"]' <half/.deltawire/state.json)" = "$id" ]
deltawire pull "$store/fork" --into half --trust trainer.key.pub --quiet >/dev/null
[ "$(json 'o["stream"]' <half/.deltawire/state.json)" = "$fork" ]

it "refuses another stream that is no fork, until it is named"
deltawire publish "$store/else" run/step_000003 --quiet >/dev/null
else=$(deltawire status "$store/else" --json | json 'o["stream"]')
keeps model fails 5 "is now stream $else.*with --stream: $else" \
    deltawire pull "$store/else" --into model
deltawire pull "$store/else" --into model --stream "$else" --quiet >/dev/null
[ "$(deltawire verify model --json | json 'o["state"]')" = "$(state_at 3)" ]

it "refuses to publish unsigned, or with another key, into a signed stream"
unchanged fails 11 "would be unsigned.*--new-key" \
    deltawire publish "$url" run/step_000002
unchanged fails 11 "would be signed by $(cat other.key.pub)" \
    deltawire publish "$url" run/step_000002 --sign-key other.key
[ "$(deltawire log "$url" --json | json 'len(o["versions"])')" = 2 ]

it "does so with --new-key, and then the new key is the stream's"
publish_step "$url" 2 --sign-key other.key --new-key
publish_step "$url" 3 --sign-key other.key
unchanged fails 11 "signed by $(cat other.key.pub), but" \
    deltawire publish "$url" run/step_000001 --sign-key trainer.key

it "needs no key after a version that is not signed: the newest version decides"
new=$store/mixed
deltawire publish "$new" run/base --sign-key trainer.key --quiet >/dev/null
publish_step "$new" 1 --new-key
publish_step "$new" 2
publish_step "$new" 3 --sign-key other.key
unchanged fails 11 "signed by $(cat other.key.pub), but" \
    deltawire publish "$new" run/step_000001

it "repairs a signed stream with its key, or with a new one if that is allowed"
fails 11 "would be unsigned.*--new-key" deltawire repair "$new" run/step_000001
fails 11 "would be signed by $(cat trainer.key.pub)" \
    deltawire repair "$new" run/step_000001 --sign-key trainer.key
deltawire repair "$new" run/step_000001 --sign-key trainer.key --new-key --quiet >/dev/null
publish_step "$new" 2 --sign-key trainer.key
deltawire repair "$new" run/step_000001 --new-key --quiet >/dev/null
publish_step "$new" 2
deltawire pull "$new" --into repaired --quiet >/dev/null
same_weights repaired run/step_000002

it "lets an unsigned stream be signed from some version on"
publish_step "$store/else" 2
publish_step "$store/else" 1 --sign-key trainer.key
unchanged fails 11 "would be unsigned" deltawire publish "$store/else" run/step_000002
