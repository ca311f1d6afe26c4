#!/bin/sh
# A whole Ceph with its S3 server, RADOS Gateway, from Debian's packages: one monitor, one
# OSD, one gateway. As any user, any number at once. See lib.sh for how it is called.
#
#     RGW_HOST        address of the gateway (127.0.0.1); the rest stays on 127.0.0.1
#     RGW_GIB         size of the OSD's sparse file (8)
#     RGW_STORE       tmpfs: that file lies in /dev/shm; disk: below DIR;
#                     default: tmpfs if there is twice as much memory
#
# There is no manager (ceph-mgr): it gathers statistics, which are not needed here, and
# takes more memory and time to start than everything else.
name=radosgw
SERVER_HOST=${RGW_HOST:-${SERVER_HOST:-127.0.0.1}}
# shellcheck source=tests/servers/lib.sh
. "$(dirname -- "$0")/lib.sh"

gib=${RGW_GIB:-8}

fits_memory() {
    [ -w /dev/shm ] || return 1
    shm=$(df -k --output=avail /dev/shm | tail -n 1)
    memory=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    [ "$shm" -ge $((gib << 20)) ] && [ "$memory" -ge $((gib << 21)) ]
}

make_data() {
    store=${RGW_STORE:-}
    if [ -z "$store" ]; then
        if fits_memory; then store=tmpfs; else store=disk; fi
    fi
    case $store in
    tmpfs) ln -s "$(mktemp -d /dev/shm/dw-radosgw.XXXXXX)" "$dir/data" ;;
    disk) mkdir "$dir/data" ;;
    *) say "RGW_STORE is '$store', not tmpfs or disk"; exit 2 ;;
    esac
    mkdir "$dir/data/mon" "$dir/data/osd" "$dir/data/rgw" "$dir/data/crash"
}

write_conf() {
    cat >"$dir/ceph.conf" <<END
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$mon_port
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = $dir/data/keyring

; paths of unix sockets are short, those of tests are not
admin socket =
pid file =
run dir = $dir/data
crash dir = $dir/data/crash
log file =
log to stderr = false
err to stderr = true
log to syslog = false
mon cluster log to file = false
mon cluster log to stderr = false
clog to monitors = false
log max recent = 1
debug asok = 0/0
debug auth = 0/0
debug bdev = 0/0
debug bluefs = 0/0
debug bluestore = 0/0
debug crush = 0/0
debug finisher = 0/0
debug heartbeatmap = 0/0
debug mgrc = 0/0
debug mon = 0/0
debug monc = 0/0
debug ms = 0/0
debug objclass = 0/0
debug objecter = 0/0
debug osd = 0/0
debug paxos = 0/0
debug rados = 0/0
debug rgw = 0/0
debug rocksdb = 0/0
debug throttle = 0/0
debug timer = 0/0
debug tp = 0/0

osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0

[mon]
mon data = $dir/data/mon
mon allow pool size one = true
mon data avail crit = 0
mon data avail warn = 0
mon max pg per osd = 1000
mon osd reporter subtree level = osd
paxos propose interval = 0.05
paxos min wait = 0.01

[osd]
osd data = $dir/data/osd
osd objectstore = bluestore
osd class update on start = false
osd memory target = 939524096
osd max object name len = 1024
bluestore block path =
bluestore block size = $((gib << 30))
bluestore fsck on mount = false
bdev enable discard = false
osd op num shards = 4
osd op num threads per shard = 1
osd scrub begin hour = 0
osd heartbeat grace = 600

[client]
rgw data = $dir/data/rgw
rgw frontends = beast endpoint=$host:$port
rgw thread pool size = 64
rgw max concurrent requests = 0
rgw num rados handles = 1
rgw enable usage log = false
rgw enable ops log = false
rgw enable gc threads = true
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw dns name =
objecter inflight ops = 24576
objecter inflight op bytes = 1073741824
END
}

make_user() { # UID ACCESS_KEY SECRET
    must radosgw-admin --conf "$conf" user create --uid "$1" --display-name "$1" \
        --access-key "$2" --secret-key "$3"
}

start_server() {
    need ceph ceph-authtool ceph-mon ceph-osd radosgw radosgw-admin monmaptool python3 setsid
    make_keys
    # Two calls, because the gateway may listen at another address.
    mon_port=$(free_ports 127.0.0.1 1)
    port=$mon_port
    while [ "$port" = "$mon_port" ]; do port=$(free_ports "$host" 1); done
    fsid=$(cat /proc/sys/kernel/random/uuid)
    osd=$(cat /proc/sys/kernel/random/uuid)
    make_data
    write_conf
    conf=$dir/ceph.conf

    must monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon_port]" \
        "$dir/data/monmap"
    keyring=$dir/data/keyring
    must ceph-authtool --create-keyring "$keyring" --gen-key -n mon. --cap mon 'allow *'
    must ceph-authtool "$keyring" --gen-key -n client.admin \
        --cap mon 'allow *' --cap osd 'allow *'
    must ceph-authtool "$keyring" --gen-key -n client.rgw \
        --cap mon 'allow rw' --cap osd 'allow rwx'
    must ceph-authtool "$keyring" --gen-key -n osd.0 \
        --cap mon 'allow profile osd' --cap osd 'allow *'
    must ceph-mon --conf "$conf" -i a --mkfs --monmap "$dir/data/monmap" \
        --keyring "$keyring"
    daemon mon ceph-mon --conf "$conf" -i a -f
    must ceph-osd --conf "$conf" -i 0 --mkfs --osd-uuid "$osd" --no-mon-config \
        --monmap "$dir/data/monmap"
    must ceph --conf "$conf" --connect-timeout 300 osd new "$osd"
    daemon osd ceph-osd --conf "$conf" -i 0 -f

    make_user tester "$access" "$secret"
    daemon rgw radosgw --conf "$conf" -n client.rgw -f
    make_user denied "$denied_access" "$denied_secret"
    await_bucket
}

serve "$@"
