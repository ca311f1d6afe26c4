#!/usr/bin/env bash
# Lists the streams below a prefix.
. "$(dirname "$0")/stream_lib.sh"
small_run 1

it "says that there is none"
[ -z "$(deltawire ls "$store/all" 2>err.none)" ]
grep -q 'there is no stream below it' err.none

deltawire publish "$store/all/a/run" run/base --quiet
publish_step "$store/all/a/run" 1
deltawire publish "$store/all/b" run/base --quiet

it "lists each with its newest version"
deltawire ls "$store/all" >out.list
[ "$(wc -l <out.list)" -eq 2 ]
grep -q "^$store/all/a/run: .* KB, version 1, .* old$" out.list
grep -q "^$store/all/b: .* KB, version 0, .* old$" out.list
deltawire ls "$store/all/a/" --json |
    holds "[(x['url'], x['head']) for x in o['streams']] == [('$store/all/a/run', 1)]"

it "lists a stream by its own URL"
deltawire ls "$store/all/b" --json | holds "[x['url'] for x in o['streams']] == ['$store/all/b']"

it "lists a damaged stream with its error"
echo rubbish >rubbish
object_put "$store/all/b" stream.json rubbish
deltawire ls "$store/all" --json | holds '["error" in x for x in o["streams"]] == [False, True]'
