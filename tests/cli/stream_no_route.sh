#!/usr/bin/env bash
# A version without a route to it is refused. Anchors lead back and forth, so the search
# for a route must end.
. "$(dirname "$0")/stream_lib.sh"
is_file_store || exit 77 # its files are damaged
small_run 4
url=$store/run
deltawire publish "$url" run/base --fold 2 --quiet >/dev/null
for i in 1 2 3 4; do publish_step "$url" "$i" --fold 2; done
deltawire pull "$url" --into model --at 3 --quiet >/dev/null

it "refuses a damaged commit, though folds and an anchor lead to its version"
commit=${url#file://}/commits/00000000000000000004.json
sed -i 's/"version":4/"version":5/' "$commit"
fails 3 '00000000000000000004.json' timeout 60 "$deltawire" pull "$url" --into model
fails 3 '00000000000000000004.json' timeout 60 "$deltawire" pull "$url" --into fresh

it "goes on when it is restored"
sed -i 's/"version":5/"version":4/' "$commit"
deltawire pull "$url" --into model --quiet >/dev/null
[ "$(state_of model)" = "$(state_at 4)" ]
