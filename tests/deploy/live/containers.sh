#!/usr/bin/env bash
# The images: a trainer's side, an agent and a Space, with a directory for the bucket.
# shellcheck source=tests/deploy/live/lib.sh
. "$(dirname "$0")/lib.sh"
small_run 3
url=file:///bucket/run
bearer="Authorization: Bearer secret-of-the-test"
install -d -o 10001 -g 10001 bucket weights baseline checkpoints
chmod 755 .
echo secret-of-the-test >token
chmod 444 token
make_certificate
chmod 444 tls.key tls.crt

# Only the rights that the images ask for, and no network.
bare=(--network none --read-only --cap-drop all --security-opt no-new-privileges)

save() { # STEP CHECKPOINT
    cp -r "run/$2" checkpoints/saving.tmp
    mv checkpoints/saving.tmp "checkpoints/checkpoint-$1"
}
is_same() { # CHECKPOINT
    cmp "weights/model/model.safetensors" "run/$1/model.safetensors"
}

it "runs as its own user, and reports its version"
for image in agent trainer; do
    podman run --rm "${bare[@]}" localhost/deltawire-$image --version | grep '^deltawire '
    [ "$(podman run --rm "${bare[@]}" --entrypoint id localhost/deltawire-$image -u)" = 10001 ]
done

it "publishes what a trainer saves"
run trainer "${bare[@]}" -v "$PWD/bucket:/bucket" -v "$PWD/baseline:/baseline" \
    -v "$PWD/checkpoints:/checkpoints:ro" \
    localhost/deltawire-trainer publish $url --watch /checkpoints --baseline /baseline/run
save 0 base

it "follows, and is ready when it has a version"
asked=agent
run agent "${bare[@]}" -v "$PWD/bucket:/bucket" -v "$PWD/weights:/weights" \
    -v "$PWD/token:/run/secrets/token:ro" localhost/deltawire-agent follow $url \
    --into /weights/model --interval 1 \
    --listen 0.0.0.0:9470 --plain --token-file /run/secrets/token
wait_until asks http://127.0.0.1:9470/readyz
wait_until is_same base
[ "$(inside agent cat /proc/1/comm)" = deltawire ]

it "has the trainer's bits after each step"
for i in 1 2 3; do
    save $i step_00000$i
    wait_until is_same step_00000$i
done
asks http://127.0.0.1:9470/readyz | grep -x ready
asks http://127.0.0.1:9470/status -H "$bearer" | holds "o['follower']['version'] == 3"
asks http://127.0.0.1:9470/metrics -H "$bearer" | grep -x 'deltawire_lag_versions 0'
[ "$(code http://127.0.0.1:9470/status)" = 401 ]

it "its health check passes, and fails if nobody listens"
podman healthcheck run agent
run deaf "${bare[@]}" --entrypoint sleep localhost/deltawire-agent 600
if podman healthcheck run deaf; then die "healthy with nobody there"; fi

it "ends on SIGTERM as process 1"
stops agent 0
stops trainer 0
podman logs trainer 2>&1 | grep 'checkpoint-3: version 3, '

it "ends on SIGTERM while it waits for a stream"
run waiting "${bare[@]}" localhost/deltawire-agent follow file:///bucket/none --into /weights/x
wait_until sh -c "\"$DW_PODMAN\" logs waiting 2>&1 | grep 'there is no stream here'"
stops waiting 0

it "continues where it stopped"
save 4 step_000001
podman start trainer agent >/dev/null
wait_until is_same step_000001
wait_until asks http://127.0.0.1:9470/readyz
stops agent 0
stops trainer 0

it "speaks TLS, and needs it or --plain if others can reach it"
run tls "${bare[@]}" -e HEALTH_URL=https://127.0.0.1:9470/healthz \
    -v "$PWD/bucket:/bucket" -v "$PWD/weights:/weights" -v "$PWD:/run/secrets:ro" \
    localhost/deltawire-agent follow $url --into /weights/model --listen 0.0.0.0:9470 \
    --token-file /run/secrets/token --tls-cert /run/secrets/tls.crt \
    --tls-key /run/secrets/tls.key
asked=tls
wait_until asks https://127.0.0.1:9470/readyz
podman healthcheck run tls
stops tls 0
status=0
podman run --rm "${bare[@]}" -v "$PWD/bucket:/bucket" -v "$PWD/token:/run/secrets/token:ro" \
    localhost/deltawire-agent follow $url --into /weights/x --listen 0.0.0.0:9470 \
    --token-file /run/secrets/token 2>err.plain || status=$?
[ $status -eq 2 ] || die "exit code $status: $(cat err.plain)"

it "shows a stream as a Space, with the token from a secret"
status=0
podman run --rm "${bare[@]}" -e STREAM_URL=$url localhost/deltawire-spaces 2>err.spaces || status=$?
[ $status -ne 0 ] && grep -q 'DELTAWIRE_TOKEN' err.spaces
run space "${bare[@]}" --tmpfs /tmp -e STREAM_URL=$url -e DELTAWIRE_TOKEN=secret-of-the-test \
    -v "$PWD/bucket:/bucket:ro" localhost/deltawire-spaces
# it has no curl of its own
run browser --network container:space --entrypoint sleep localhost/deltawire-agent 600
asked=browser
wait_until asks http://127.0.0.1:7860/readyz -H 'Host: me-name.hf.space'
asks http://127.0.0.1:7860/ -H 'Host: me-name.hf.space' | grep -i '<!doctype html>'
asks http://127.0.0.1:7860/status -H "$bearer" | holds "o['head']['version'] == 4"
[ "$(code http://127.0.0.1:7860/status)" = 401 ]
[ "$(inside space id -u)" = 1000 ]
[ "$(inside space stat -c %a /tmp/deltawire-token)" = 600 ]
if inside space cat /proc/1/environ | tr '\0' '\n' | grep secret-of-the-test; then
    die "the token is in its environment"
fi
stops space 0

it "gives its library to a trainer's own image"
mkdir own
cp "$tree/examples/publish_and_follow.c" own/
cat >own/Dockerfile <<'END'
FROM localhost/deltawire-build AS compile
COPY --from=localhost/deltawire-trainer /usr/local/ /usr/local/
COPY publish_and_follow.c .
RUN ldconfig && cc publish_and_follow.c -o /trainer $(pkg-config --cflags --libs deltawire)
FROM localhost/deltawire-trainer
COPY --from=compile /trainer /trainer
ENTRYPOINT ["/trainer"]
END
podman build -q --network none -t own own
podman run --rm --network none --tmpfs /tmp -w /tmp localhost/own
