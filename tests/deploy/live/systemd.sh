#!/usr/bin/env bash
# The units under a systemd of their own, in a container: installed by CMake, with the
# drop-ins, real users, mounts and credentials.
# shellcheck source=tests/deploy/live/lib.sh
. "$(dirname "$0")/lib.sh"
bearer="Authorization: Bearer secret-of-the-test"
asked=machine
examples=/usr/local/share/doc/deltawire/systemd/examples

machine() { # COMMAND..., or a script on stdin
    podman exec -i machine "${@:-bash}"
}
systemctl() {
    machine systemctl "$@"
}
is() { # UNIT PROPERTY VALUE
    [ "$(systemctl show -P "$2" "$1")" = "$3" ] ||
        { echo "$1: $2 is $(systemctl show -P "$2" "$1"), not $3"; false; }
}
drop_in() { # UNIT NAME: contents on stdin
    local dir=/etc/systemd/system/$1.service.d
    machine mkdir -p "$dir" </dev/null
    machine tee "$dir/$2.conf" >/dev/null
}
example() { # UNIT NAME
    machine cat "$examples/$2.conf" | drop_in "$1" "$2"
}
save() { # STEP CHECKPOINT
    machine <<END
set -e
cp -r /srv/run/$2 /srv/output/saving.tmp
chown -R trainer:trainer /srv/output/saving.tmp
chmod -R o= /srv/output/saving.tmp
mv /srv/output/saving.tmp /srv/output/checkpoint-$1
END
}
is_same() { # CHECKPOINT [DIR]
    machine cmp "${2:-/var/lib/deltawire/test/model}/model.safetensors" \
        "/srv/run/$1/model.safetensors"
}

it "boots"
run machine --systemd=always --network none --cap-add all \
    --security-opt seccomp=unconfined localhost/deltawire-machine
wait_until systemctl is-system-running
make_certificate
machine mkdir /etc/deltawire
podman cp tls.key machine:/etc/deltawire/
podman cp tls.crt machine:/etc/deltawire/
machine <<'END'
set -e
useradd --system --user-group trainer
mkdir -p /srv/bucket /srv/output
chown deltawire:deltawire /srv/bucket
chown trainer:trainer /srv/output
chmod 750 /srv/bucket /srv/output
deltawire synth -o /srv/run --params 300K --steps 3 --write checkpoints -q >/dev/null

cd /etc/deltawire
deltawire keygen trainer.key >/dev/null
echo secret-of-the-test >token
echo secret-of-the-engine >engine-token
printf '[default]\naws_access_key_id = a\naws_secret_access_key = secret-of-s3\n' >aws-credentials
cat >publish-test.env <<'X'
URL=file:///srv/bucket/run
WATCH=/srv/output
OPTIONS=--fold 16
X
cat >follow-test.env <<'X'
URL=file:///srv/bucket/run
ENGINE=--engine exec --pause true --apply 'echo "$DELTAWIRE_VERSION" >>"$DELTAWIRE_DIR/../applied"' --engine-token-file /run/credentials/deltawire-follow@test.service/engine
OPTIONS=--interval 1 --trust /etc/deltawire/trainer.key.pub
X
cat >serve-status-test.env <<'X'
URL=file:///srv/bucket/run
LISTEN=0.0.0.0:9471
X
chmod 600 -- *
chmod 644 trainer.key.pub
END
# the units do not provide for a bucket in a directory
printf '[Service]\nReadWritePaths=/srv/bucket\nSupplementaryGroups=trainer\n' |
    drop_in deltawire-publish@test bucket
printf '[Service]\nReadWritePaths=/srv/bucket\n' | drop_in deltawire-follow@test bucket
printf '[Service]\nSupplementaryGroups=deltawire\n' | drop_in deltawire-serve-status@test bucket
example deltawire-publish@test sign
example deltawire-follow@test memory
example deltawire-serve-status@test tls
systemctl daemon-reload

it "publishes, follows and shows"
systemctl start deltawire-publish@test deltawire-follow@test deltawire-serve-status@test
save 0 base
wait_until asks http://127.0.0.1:9470/readyz
wait_until is_same base
save 1 step_000001
wait_until is_same step_000001
wait_until machine grep -qx 1 /var/lib/deltawire/test/applied
asks http://127.0.0.1:9470/status -H "$bearer" | holds "o['engines'][0]['state'] == 'serving'"
wait_until asks https://127.0.0.1:9471/readyz
shows() { # VERSION
    asks https://127.0.0.1:9471/status -H "$bearer" | holds "o['head']['version'] == $1"
}
wait_until shows 1
[ "$(code http://127.0.0.1:9470/status)" = 401 ]
machine deltawire log file:///srv/bucket/run --trust /etc/deltawire/trainer.key.pub >/dev/null

it "confines them"
for verb in publish follow serve-status; do
    pid=$(systemctl show -P MainPID deltawire-$verb@test)
    machine cat "/proc/$pid/status" >out.status
    grep -qx 'NoNewPrivs:.1' out.status
    grep -qx 'CapEff:.0000000000000000' out.status
    grep -qx 'Seccomp:.2' out.status
    uid=$(sed -n 's/^Uid:.\([0-9]*\).*/\1/p' out.status)
    if [ $verb = serve-status ]; then
        [ "$uid" -ge 61184 ] # one made up by systemd
    else
        [ "$uid" = "$(machine id -u deltawire)" ]
    fi
    if machine cat "/proc/$pid/environ" | tr '\0' '\n' | grep secret-of; then
        die "a secret is in the environment of $verb"
    fi
    if machine nsenter -t "$pid" -m touch /etc/deltawire/x 2>/dev/null; then
        die "$verb can write to /etc"
    fi
done
machine stat -c '%U:%G %a' /var/lib/deltawire/test /var/lib/deltawire/test/model/model.safetensors \
    >out.modes
diff out.modes - <<'END'
deltawire:deltawire 750
deltawire:deltawire 640
END

it "starts again what was killed"
systemctl kill -s KILL deltawire-follow@test
wait_until is deltawire-follow@test NRestarts 1
wait_until asks http://127.0.0.1:9470/readyz
save 2 step_000002
wait_until is_same step_000002

it "does not take over again a stream that another trainer took over"
machine deltawire publish file:///srv/bucket/run /srv/run/step_000001 --baseline /tmp/baseline \
    --sign-key /etc/deltawire/trainer.key >/dev/null
machine chown -R deltawire:deltawire /srv/bucket
save 4 step_000003
wait_until is deltawire-publish@test ActiveState failed
is deltawire-publish@test ExecMainStatus 8
is deltawire-publish@test NRestarts 0

it "does not retry a wrong command line"
machine sh -c 'sed "s/--interval 1/--interval x/" /etc/deltawire/follow-test.env \
    >/etc/deltawire/follow-wrong.env'
systemctl start deltawire-follow@wrong
wait_until is deltawire-follow@wrong ActiveState failed
is deltawire-follow@wrong ExecMainStatus 2
is deltawire-follow@wrong NRestarts 0

it "stops on SIGTERM, and logs to the journal"
for verb in follow serve-status; do
    systemctl stop deltawire-$verb@test
    is deltawire-$verb@test Result success
    is deltawire-$verb@test ExecMainStatus 0
done
prints 'version 0 from nothing' machine journalctl -u deltawire-follow@test --no-pager

it "keeps weights in memory"
machine cp $examples/srv-deltawire.mount /etc/systemd/system/
machine rm /etc/systemd/system/deltawire-follow@test.service.d/memory.conf
example deltawire-follow@test tmpfs
systemctl daemon-reload
systemctl start deltawire-follow@test
wait_until asks http://127.0.0.1:9470/readyz
is_same step_000001 /srv/deltawire/test
[ "$(machine stat -f -c %T /srv/deltawire/test)" = tmpfs ]
[ "$(machine stat -c '%U:%G %a' /srv/deltawire)" = 'deltawire:deltawire 750' ]
systemctl stop deltawire-follow@test
is deltawire-follow@test Result success
