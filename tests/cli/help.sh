#!/usr/bin/env bash
# Help, version and wrong usage.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$(dirname "$0")/lib.sh"

verbs=$(deltawire --options)

it "prints its version"
prints '^deltawire [0-9]*\.[0-9]*\.[0-9]* ' deltawire --version

it "lists verbs and exit codes"
prints 'Exit codes' deltawire --help
for verb in $verbs; do
    prints "^  $verb " deltawire --help
done

it "shows an example for each verb"
for verb in $verbs; do
    deltawire "$verb" --help >help.txt 2>err.txt
    grep -q "^usage: deltawire $verb " help.txt
    grep -q "^  deltawire $verb\b" help.txt
    [ ! -s err.txt ]
    deltawire "$verb" -h | cmp - help.txt
    deltawire help "$verb" | cmp - help.txt
done
deltawire help | cmp - <(deltawire --help)
fails 2 "no verb 'frobnicate'" deltawire help frobnicate

it "refuses unknown verbs and options with exit code 2"
fails 2 "no verb 'frobnicate'" deltawire frobnicate
for verb in $verbs; do
    fails 2 "unknown option '--frobnicate'" deltawire "$verb" --frobnicate
    fails 2 "unknown option '-x'" deltawire "$verb" -x
done
status=0
deltawire >out.txt 2>err.txt || status=$?
[ $status -eq 2 ] && [ ! -s out.txt ] && grep -q '^usage: ' err.txt

it "refuses abbreviated options"
fails 2 "unknown option '--js'" deltawire inspect x --js
fails 2 "unknown option '--thr'" deltawire inspect x --thr 2
fails 2 "unknown option '--thr'" deltawire inspect --thr=2 x
fails 2 "unknown option '--hel'" deltawire inspect --hel

fails 2 "'--json' takes no value" deltawire inspect x --json=yes

it "takes --json as a value after an option that needs one"
fails 6 "x: cannot open" deltawire apply x --to --json

it "reports which argument is missing or too many"
fails 2 "NEW is missing" deltawire diff a -o c
fails 2 "too many" deltawire diff a b c -o d
fails 2 "-o DELTA is missing" deltawire diff a b
fails 2 "'-o' needs a value" deltawire diff a b -o
fails 2 "--to CKPT is missing" deltawire apply a
fails 2 "--base CKPT is missing" deltawire convert a -o b
fails 2 "-o DIR is missing" deltawire synth
fails 2 "CKPT is missing" deltawire publish url
fails 2 "too many" deltawire publish url ckpt --watch dir
fails 2 "--into DIR is missing" deltawire pull url
fails 2 "--into DIR is missing" deltawire follow url
fails 2 "URL is missing" deltawire serve-status
fails 2 "TO-URL is missing" deltawire cp url
fails 2 "FILE is missing" deltawire keygen
fails 2 "--keep N is missing" deltawire gc url

it "refuses values that make no sense"
fails 2 "'lots' is not a whole number" deltawire verify x --threads lots
fails 2 "'-1' is not a whole number" deltawire verify x --threads=-1
fails 2 "'zip' is none of" deltawire diff a b -o c --codec zip
fails 2 "'v2' is neither" deltawire diff a b -o c --trl v2
fails 2 "v1 has no codec gap" deltawire diff a b -o c --codec gap --trl v1
fails 2 "no codec class" deltawire diff a b -o c --codec class --trl v3
fails 2 "must be greater" deltawire diff a b -o c --from 7 --to 7
fails 2 "not a size" deltawire synth -o x --params many
fails 2 "not a positive number" deltawire synth -o x --lr -1
fails 2 "'4,6' is neither none nor" deltawire publish url ckpt --fold 4,6
fails 2 "'1' is neither" deltawire publish url ckpt --fold 1
fails 2 "is no version" deltawire pull url --into x --at 99999999999999999
fails 2 "at most 86400" deltawire follow url --into x --interval 1e9
fails 2 "at most 86400" deltawire serve-status url --interval 1e9
fails 2 "--tls-cert and --tls-key go together" deltawire serve-status url --tls-cert x
fails 2 "--trust, .* are for streams" deltawire verify x --trust y
fails 2 "is a stream" deltawire verify file:///x y

it "reports wrong usage as JSON too"
status=0
deltawire diff --json --frobnicate >out.json 2>err.txt || status=$?
[ $status -eq 2 ] && [ ! -s err.txt ]
holds 'o["error"]["code"] == "invalid" and "frobnicate" in o["error"]["text"]' <out.json
status=0
deltawire frobnicate --json >out.json 2>err.txt || status=$?
[ $status -eq 2 ] && [ ! -s err.txt ]
holds 'o["error"]["code"] == "invalid" and "frobnicate" in o["error"]["text"]' <out.json

it "keeps JSON valid whatever bytes a path holds"
name=$(printf 'no\xff\x01such')
deltawire inspect "$name" --json >out.json && die "a missing file was inspected"
holds 'o["error"]["code"] == "not found" and "\ufffd" in o["error"]["where"]' <out.json

[ -z "${DW_SANITIZE-}" ] || exit 0 # what follows compares texts, of hundreds of processes
it "names each option in help, manual page and completion"
"$root/scripts/manual.sh" "$deltawire" "$root/docs/deltawire.1" >page.1
cmp page.1 "$root/docs/deltawire.1" ||
    die "run: scripts/manual.sh build/deltawire docs/deltawire.1 >new && mv new docs/deltawire.1"
# complete WORD...: what bash offers for the last word
complete_words() {
    bash -c '. "$0" && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) &&
        _deltawire "$1" "${!#}" "" && printf "%s\n" "${COMPREPLY[@]}"' \
        "$root/cli/completion.bash" "$deltawire" "$@"
}
[ "$(complete_words sta | tr '\n' ' ')" = "status stats " ]
[ -z "$(complete_words diff x)" ]
grep -o '^\.It .*Fl -.*' page.1 | grep -o -e '-[a-z0-9-]*' | sed 's/^/-/' | sort -u >paged.txt
for verb in $verbs; do
    deltawire --options "$verb" | cut -f 3 | sed 's/^/--/' | sort >has.txt
    complete_words "$verb" -- | sort | cmp - has.txt
    deltawire "$verb" --help | grep -o -e '--[a-z0-9-]*' | sort -u >helped.txt
    [ -z "$(comm -23 has.txt helped.txt)" ] && [ -z "$(comm -23 has.txt paged.txt)" ]
done
