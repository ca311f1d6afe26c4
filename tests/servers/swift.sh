#!/bin/sh
# OpenStack Swift with its S3 API, from Debian's packages: the real server that refuses
# conditional writes (501). One proxy, one account, container and object server, one
# replica. As any user, any number at once. See lib.sh for how it is called.
#
#     SWIFT_STORE     directory for the data: its filesystem must have extended attributes.
#                     Default: the first that does of DIR, /dev/shm, /var/tmp. `loop`: an
#                     ext4 in a file below DIR, mounted; root's last resort
name=swift
# shellcheck source=tests/servers/lib.sh
. "$(dirname -- "$0")/lib.sh"

# Swift keeps an object's metadata in one attribute of up to 64 KiB, and splits it if
# the filesystem allows less.
has_attributes() { # DIR
    [ -w "$1" ] && python3 -c '
import os, sys, tempfile
with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
    os.setxattr(file.name, "user.swift.metadata", b"x" * 2000)' "$1" 2>/dev/null
}

mount_loop() {
    mkdir "$dir/data"
    must truncate -s 4G "$dir/data.ext4"
    must mkfs.ext4 -q -F "$dir/data.ext4"
    must mount -o loop "$dir/data.ext4" "$dir/data"
}

make_data() {
    store=${SWIFT_STORE:-}
    for candidate in "$dir" /dev/shm /var/tmp; do
        [ -n "$store" ] && break
        has_attributes "$candidate" && store=$candidate
    done
    if [ -z "$store" ] && [ "$(id -u)" -eq 0 ]; then
        store=loop
    fi
    case $store in
    '') say "skipped: no filesystem with extended attributes in $dir, /dev/shm or" \
            "/var/tmp, and only root can mount one"; exit 77 ;;
    loop) mount_loop ;;
    "$dir") mkdir "$dir/data" ;;
    *) ln -s "$(mktemp -d "$store/dw-swift.XXXXXX")" "$dir/data" ;;
    esac
    mkdir -p "$dir/data/conf" "$dir/data/devices/d1" "$dir/data/cache"
}

make_ring() { # FILE PORT
    # 2^4 partitions, one replica; nothing moves, so 0 hours between moves
    must swift-ring-builder "$conf/$1.builder" create 4 1 0
    must swift-ring-builder "$conf/$1.builder" add "r1z1-127.0.0.1:$2/d1" 1
    must swift-ring-builder "$conf/$1.builder" rebalance
}

write_conf() { # SERVER HOST PORT PIPELINE
    cat >"$conf/$1.conf" <<END
[DEFAULT]
bind_ip = $2
bind_port = $3
swift_dir = $conf
devices = $dir/data/devices
mount_check = false
disable_fallocate = true
recon_cache_path = $dir/data/cache
user = $(id -un)
workers = 0
log_level = WARNING
[pipeline:main]
pipeline = $4
[app:$1-server]
use = egg:swift#$1
END
}

# Swift knows only the key of the second user: it belongs to no group, so it has no
# rights.
write_proxy_conf() {
    write_conf proxy "$host" "$port" "catch_errors gatekeeper cache listing_formats bulk \
s3api tempauth slo dlo proxy-server"
    cat >>"$conf/proxy.conf" <<END
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$cache_port
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_$access = $secret .admin
user_test_$denied_access = $denied_secret
[filter:slo]
use = egg:swift#slo
max_manifest_segments = 10000
[filter:dlo]
use = egg:swift#dlo
END
    access=test:$access denied_access=test:$denied_access
}

start_server() {
    need swift-proxy-server swift-account-server swift-container-server \
        swift-object-server swift-ring-builder memcached python3 setsid
    make_keys
    make_data
    conf=$dir/data/conf
    ports=$(free_ports 127.0.0.1 4)
    port=${ports%% *}
    while case " $ports " in *" $port "*) ;; *) false ;; esac; do port=$(free_ports "$host" 1); done
    cache_port=${ports##* }

    daemon memcached memcached -u "$(id -un)" -l 127.0.0.1 -p "$cache_port" -m 64
    cat >"$conf/swift.conf" <<END
[swift-hash]
swift_hash_path_suffix = $(random_word 16)
[storage-policy:0]
name = only
default = yes
END
    for server in account container object; do
        make_ring "$server" "${ports%% *}"
        write_conf "$server" 127.0.0.1 "${ports%% *}" "$server-server"
        ports=${ports#* }
        daemon "$server" "swift-$server-server" "$conf/$server.conf" -v
    done
    write_proxy_conf
    daemon proxy swift-proxy-server "$conf/proxy.conf" -v
    await_bucket
}

serve "$@"
