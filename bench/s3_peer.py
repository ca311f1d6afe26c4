"""Measures how fast other clients move the same bytes: s3_peer.py CLIENT put|get KEY BYTES REPEAT

Like bench/store_transfer.c: KEY-0 .. KEY-(REPEAT-1), one after another, and a line of JSON. BYTES
may be several sizes separated by commas, which alternate. The clients are set up for speed: no
optional checksums, and for all 16 MiB parts and 8 connections.

    s5cmd      files in /dev/shm, one worker, the process's own time within
    crt        awscrt's S3 client; files in /dev/shm, timed inside
    obstore    memory to memory, timed inside
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ENDPOINT = os.environ["DW_TEST_S3_ENDPOINT"]
BUCKET = os.environ["DW_TEST_S3_BUCKET"]
PART_BYTES = 16 << 20
N_CONNECTIONS = 8


def random_bytes(n):
    block = os.urandom(1 << 20)
    return (block * (n // len(block) + 1))[:n]


class Files:
    """For clients that transfer files: sources and targets are in /dev/shm."""

    def __init__(self, put, keys, sizes):
        self.room = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dw-bench.")
        self.paths = [pathlib.Path(self.room.name, pathlib.PurePath(k).name) for k in keys]
        if put:
            for path, n in zip(self.paths, sizes):
                path.write_bytes(random_bytes(n))

    def check(self, sizes):
        found = [p.stat().st_size for p in self.paths]
        if found != sizes:
            sys.exit(f"got files of {found} bytes, not {sizes}")


def time_s5cmd(put, keys, sizes):
    files = Files(put, keys, sizes)
    program = pathlib.Path(sys.executable).parent / "s5cmd"
    copy = ["cp", "--concurrency", str(N_CONNECTIONS), "--part-size", str(PART_BYTES >> 20)]
    prefix = f"s3://{BUCKET}/{os.path.dirname(keys[0])}/"
    ends = [f"{files.room.name}/*", prefix] if put else [prefix + "*", files.room.name + "/"]
    command = [program, "--endpoint-url", ENDPOINT, "--numworkers", "1", *copy, *ends]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    files.check(sizes)
    return seconds


def time_crt(put, keys, sizes):
    """Uses awscrt itself. boto3 on top of it always uses TLS and a trailing checksum, which this
    server does not support."""
    from awscrt import auth, http, io, s3

    group = io.EventLoopGroup()
    credentials = auth.AwsCredentialsProvider.new_static(
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    signing = s3.create_default_s3_signing_config(
        region="us-east-1", credential_provider=credentials)
    client = s3.S3Client(bootstrap=io.ClientBootstrap(group, io.DefaultHostResolver(group)),
                         region="us-east-1", signing_config=signing, part_size=PART_BYTES,
                         tls_mode=s3.S3RequestTlsMode.DISABLED)
    files = Files(put, keys, sizes)
    host = ENDPOINT.split("//")[1]

    def move(key, path, n):
        headers = http.HttpHeaders([("host", host)])
        if put:
            headers.add("content-length", str(n))
        request = http.HttpRequest("PUT" if put else "GET", f"/{BUCKET}/{key}", headers)
        kind = s3.S3RequestType.PUT_OBJECT if put else s3.S3RequestType.GET_OBJECT
        ends = {"send_filepath" if put else "recv_filepath": str(path)}
        client.make_request(type=kind, request=request, **ends).finished_future.result()

    start = time.perf_counter()
    for key, path, n in zip(keys, files.paths, sizes):
        move(key, path, n)
    seconds = time.perf_counter() - start
    files.check(sizes)
    return seconds


def time_obstore(put, keys, sizes):
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=ENDPOINT, virtual_hosted_style_request=False,
                    region="us-east-1", client_options={"allow_http": True}, unsigned_payload=True)
    data = [random_bytes(n) for n in sizes] if put else []
    pool = concurrent.futures.ThreadPoolExecutor(N_CONNECTIONS)

    def get(key, n):
        if n <= PART_BYTES:
            return len(obstore.get(store, key).bytes())
        into = memoryview(bytearray(n))

        def get_part(at):
            end = min(at + PART_BYTES, n)
            into[at:end] = obstore.get_range(store, key, start=at, end=end)

        for _ in pool.map(get_part, range(0, n, PART_BYTES)):
            pass
        return n

    start = time.perf_counter()
    for i, key in enumerate(keys):
        if put:
            obstore.put(store, key, data[i], chunk_size=PART_BYTES, max_concurrency=N_CONNECTIONS)
        elif get(key, sizes[i]) != sizes[i]:
            sys.exit(f"{key} has another size")
    return time.perf_counter() - start


def main():
    client, verb, key, sizes, repeat = sys.argv[1:]
    given = [int(n) for n in sizes.split(",")]
    sizes = [given[i % len(given)] for i in range(int(repeat))]
    keys = [f"{key}-{i}" for i in range(len(sizes))]
    clients = {"s5cmd": time_s5cmd, "crt": time_crt, "obstore": time_obstore}
    seconds = clients[client](verb == "put", keys, sizes)
    print(json.dumps({verb: given[0], "n": len(sizes), "seconds": round(seconds, 4),
                      "MB_per_s": round(sum(sizes) / seconds / 1e6)}))


main()
