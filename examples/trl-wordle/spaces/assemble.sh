#!/bin/sh
# Makes the contents of a Space's repository from the committed files.
#
#     examples/trl-wordle/spaces/assemble.sh env|rollout|trainer DIR
set -eu
usage() { echo "usage: assemble.sh env|rollout|trainer DIR" >&2; exit 2; }
[ $# -eq 2 ] || usage
case $1 in env) port=8800 ;; rollout) port=8000 ;; trainer) port=7860 ;; *) usage ;; esac
part=$1
mkdir -p "$2"
into=$(cd "$2" && pwd)
cd "$(dirname "$0")/../../.."

# The environment is built from its own folder, the others from the whole tree.
if [ "$part" = env ]; then
    git archive HEAD:examples/trl-wordle env.py | tar -x -C "$into"
else
    git archive HEAD -- . ':!tests' ':!docs/img' ':!README.md' | tar -x -C "$into"
fi
cp "examples/trl-wordle/$part.Dockerfile" "$into/Dockerfile"
cat >"$into/README.md" <<README
---
title: Wordle $part
sdk: docker
app_port: $port
license: apache-2.0
---

Made by \`examples/trl-wordle/spaces/assemble.sh\`; run it again to update.
README
