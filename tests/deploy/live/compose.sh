#!/usr/bin/env bash
# compose.yaml: trainer's side, agent and status on one machine.
# shellcheck source=tests/deploy/live/lib.sh
. "$(dirname "$0")/lib.sh"
small_run 2
cp "$tree/deploy/containers/compose.yaml" .
mkdir checkpoints
echo secret-of-the-test >token
chmod 755 .
chmod 444 token
bearer="Authorization: Bearer secret-of-the-test"
compose() {
    podman-compose --podman-path "$DW_PODMAN" -p dw "$@" >>out.compose 2>&1 ||
        die "$(tail -n 20 out.compose)"
}
save() { # STEP CHECKPOINT
    cp -r "run/$2" checkpoints/saving.tmp
    mv checkpoints/saving.tmp "checkpoints/checkpoint-$1"
}
is_same() { # CHECKPOINT
    inside dw_agent_1 cat /weights/model/model.safetensors | cmp - "run/$1/model.safetensors"
}

it "comes up together, in any order"
compose up --detach --no-build
save 0 base
asked=dw_agent_1
wait_until asks http://127.0.0.1:9470/readyz
wait_until is_same base

it "brings each step through the volume"
for i in 1 2; do
    save $i step_00000$i
    wait_until is_same step_00000$i
done

it "is asked from the machine, with the token"
curl -fsS -m 10 -H "$bearer" http://127.0.0.1:9470/status | holds "o['follower']['version'] == 2"
shows() { # VERSION
    curl -fsS -m 10 -H "$bearer" http://127.0.0.1:9471/status | holds "o['head']['version'] == $1"
}
wait_until shows 2
[ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:9471/status)" = 401 ]
podman healthcheck run dw_status_1
podman healthcheck run dw_agent_1

it "ends on SIGTERM"
for service in agent status trainer; do
    stops dw_${service}_1 0
done
compose down --volumes
