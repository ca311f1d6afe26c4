#!/usr/bin/env bash
# -q: a verb that does something prints nothing if it works. A verb that shows something
# prints only that. Errors are still printed.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$scratch/cache
tried=

run_quiet() { # VERB...: standard output in out, standard error must stay empty
    tried="$tried $1"
    deltawire "$@" -q >out 2>err || die "exit code $?: $* ($(cat err))"
    [ ! -s err ] || die "$*: $(cat err)"
}
silent() { # VERB...
    run_quiet "$@"
    [ ! -s out ] || die "$*: $(cat out)"
}
shows() { # PATTERN VERB...
    run_quiet "${@:2}"
    grep -q -e "$1" out || die "${*:2}: not '$1': $(cat out)"
}

it "checkpoints and deltas"
silent synth -o run --params 200K --steps 3 --write both
silent diff run/base run/step_000001 -o delta
silent convert delta -o converted --base run/base --codec raw
silent verify run/base
silent verify run/base delta
cp -r run/base model
silent apply delta --to model
silent recover model
shows tensors inspect delta
shows GB/s bench --size 1M --rounds 1

it "streams"
silent publish s run/base
silent publish s run/base # no weight differs
silent publish s run/step_000001 --step 1
silent publish s run/step_000002 --step 2 --fold none
silent pull s --into pulled --at 1
silent pull s --into pulled
silent pull s --into pulled # nothing new
cp -r run/base linked && ln linked/model.safetensors second
silent pull s --into linked # makes a private copy
silent follow s --into followed --until 2 --exec true
silent compact s --fold 2
silent compact s --anchor
silent verify s
silent cp s copied
silent cp s copied
silent mirror s trl --as trl --once --work work
silent mirror trl back --once --work work-back
silent repair s run/step_000003
shows '^ *4 ' log s
shows 'version 4' status s
shows 'version 4' ls s
shows 'after version 4' check s
shows bits stats s
shows 'would remove' gc s --keep 1 --dry-run
silent gc s --keep 1
silent gc s --forget "$(deltawire status s --json | json 'o["followers"][0]["id"]')"

it "publish --watch"
mkdir output # a directory that cannot be published would be reported
cp -r run/step_* output
env --default-signal=INT "$deltawire" publish watched --watch output -q >out 2>err &
watching=$!
is_published() { deltawire status watched --json | holds 'o["head"] == 2'; }
wait_until is_published
kill -INT $watching
status=0
wait $watching || status=$?
[ $status -eq 0 ] || [ $status -eq 130 ] || die "exit code $status"
[ ! -s out ] && [ ! -s err ] || die "$(cat out err)"

it "serve-status"
env --default-signal=INT "$deltawire" serve-status s --listen 127.0.0.1:0 -q >out 2>err &
serving=$!
tried="$tried serve-status"
has_sockets() { # PID: it has an open socket
    [ -n "$(find "/proc/$1/fd" -lname 'socket:*')" ]
}
wait_until has_sockets $serving
kill -INT $serving
status=0
wait $serving || status=$?
[ $status -eq 0 ] || die "exit code $status: $(cat err)"
[ ! -s out ] && [ ! -s err ] || die "$(cat out err)"

it "this machine"
shows '^[0-9a-zA-Z+/=:_-]*$' keygen key
[ "$(cat out)" = "$(cat key.pub)" ]
shows ' kept ' cache
shows ' would go ' cache --prune --unused-for 0 --dry-run
silent cache --prune --unused-for 0

it "JSON and errors are not quiet"
deltawire pull s --into pulled -q --json | holds 'o["version"] == 4'
fails 6 'cannot open' deltawire verify nowhere -q
printf x | dd of=pulled/model.safetensors bs=1 seek=4000 conv=notrunc status=none
fails 3 'the weights' deltawire verify pulled -q

it "every verb was tried"
for verb in $(deltawire --help | sed -n 's/^  \([a-z][a-z-]*\)  *[a-z].*/\1/p'); do
    case " $tried " in *" $verb "*) ;; *) die "$verb was not tried" ;; esac
done
