#!/bin/sh
# Makes the contents of a Space's repository from the committed files of this one.
#
#     deploy/containers/spaces/assemble.sh DIR     a clone of the Space, or an empty directory
set -eu
[ $# -eq 1 ] || { echo "usage: assemble.sh DIR" >&2; exit 2; }
mkdir -p "$1"
into=$(cd "$1" && pwd)
cd "$(dirname "$0")/../../.."

# The Hub refuses large files in plain git; tests and pictures are not needed.
git archive HEAD -- . ':!tests' ':!docs/img' ':!README.md' | tar -x -C "$into"
cp deploy/containers/spaces.Dockerfile "$into/Dockerfile"
cp deploy/containers/spaces/README.md "$into/README.md"
