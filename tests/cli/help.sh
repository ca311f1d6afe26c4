#!/usr/bin/env bash
# Help, version and wrong usage.
. "$(dirname "$0")/lib.sh"

verbs='publish pull follow log status serve-status stats squash repair gc cp mirror keygen'
verbs="$verbs diff apply inspect verify recover convert synth bench"

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
    grep -q "^  deltawire $verb " help.txt
    [ ! -s err.txt ]
    deltawire "$verb" -h | cmp - help.txt
done

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
fails 2 "unknown option '--js': --json in full" deltawire inspect x --js
fails 2 "unknown option '--thr': " deltawire inspect x --thr 2
fails 2 "unknown option '--thr': " deltawire inspect --thr=2 x
fails 2 "unknown option '--hel': " deltawire inspect --hel

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
fails 2 "'2,4,8,16,32' is neither" deltawire publish url ckpt --fold 2,4,8,16,32
fails 2 "'4,' is neither" deltawire publish url ckpt --fold 4,
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
