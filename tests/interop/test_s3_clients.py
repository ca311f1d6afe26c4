"""Objects that this library writes to a real S3 server are read by unrelated clients,
boto3 and s3cmd, and the other way round.

The server is that of DW_TEST_S3_ENDPOINT if set, else a RADOS Gateway started here.
DW_STORE_TOOL names the program; build/tests/store/store_tool by default.
"""
import os
import pathlib
import random
import shutil
import subprocess
import uuid

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("DW_STORE_TOOL", str(ROOT / "build/tests/store/store_tool"))
MIB = 1 << 20

KEYS = [
    "a",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./=+@",
    "deep/er/and/deeper/.hidden/..dots/x",
    "=+@=+@/-_-/a=b+c@d",
    "long/" + "k" * 500,
]
SIZES = [0, 1, 65537, 40 * MIB + 3]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The variables of the server."""
    if "DW_TEST_S3_ENDPOINT" in os.environ:
        yield dict(os.environ)
        return
    where = tmp_path_factory.mktemp("radosgw")
    script = ROOT / "tests/servers/radosgw.sh"
    started = subprocess.run([script, "start", where], stderr=subprocess.PIPE, text=True,
                             check=False)
    if started.returncode == 77:
        pytest.skip(started.stderr)
    assert started.returncode == 0, started.stderr
    try:
        lines = (where / "env").read_text().splitlines()
        yield os.environ | dict(line.removeprefix("export ").split("=", 1)
                                for line in lines)
    finally:
        subprocess.run([script, "stop", where], check=True)


class Ours:
    def __init__(self, env, prefix):
        self.env = env
        self.url = f"s3://{env['DW_TEST_S3_BUCKET']}/{prefix}"

    def call(self, verb, *args):
        return subprocess.run([TOOL, verb, self.url, *args], env=self.env, check=True,
                              stdout=subprocess.PIPE, text=True, timeout=120).stdout

    def put(self, key, path):
        self.call("put", key, path)

    def get(self, key, path):
        self.call("get", key, path)

    def list(self):
        pairs = (line.split(" ", 1) for line in self.call("list").splitlines())
        return {key: int(size) for size, key in pairs}


class Boto3:
    def __init__(self, env, prefix):
        self.bucket, self.prefix = env["DW_TEST_S3_BUCKET"], prefix
        self.client = boto3.client(
            "s3", endpoint_url=env["DW_TEST_S3_ENDPOINT"],
            region_name=env["AWS_REGION"],
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
            # the checksums that newer versions add by default are unknown to older servers
            config=Config(s3={"addressing_style": "path"},
                          request_checksum_calculation="when_required",
                          response_checksum_validation="when_required"))

    def put(self, key, path):
        self.client.upload_file(str(path), self.bucket, f"{self.prefix}/{key}")

    def get(self, key, path):
        self.client.download_file(self.bucket, f"{self.prefix}/{key}", str(path))

    def list(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + "/")
        return {o["Key"].removeprefix(self.prefix + "/"): o["Size"]
                for page in pages for o in page.get("Contents", [])}


class S3cmd:
    def __init__(self, env, prefix):
        self.url = f"s3://{env['DW_TEST_S3_BUCKET']}/{prefix}/"
        host = env["DW_TEST_S3_ENDPOINT"].removeprefix("http://")
        self.command = [
            shutil.which("s3cmd"), "--config=/dev/null", "--no-ssl",
            "--no-progress", "--force", f"--host={host}", f"--host-bucket={host}",
            f"--access_key={env['AWS_ACCESS_KEY_ID']}",
            f"--secret_key={env['AWS_SECRET_ACCESS_KEY']}", "--region=us-east-1"]

    def call(self, *args):
        return subprocess.run(self.command + list(args), check=True, timeout=120,
                              stdout=subprocess.PIPE, text=True).stdout

    def put(self, key, path):
        self.call("put", "--quiet", str(path), self.url + key)

    def get(self, key, path):
        self.call("get", "--quiet", self.url + key, str(path))

    def list(self):
        lines = (line.split(None, 3) for line in
                 self.call("ls", "--recursive", self.url).splitlines())
        return {url.removeprefix(self.url): int(size) for _, _, size, url in lines}


@pytest.fixture(params=[Boto3, S3cmd])
def theirs(request, server):
    if request.param is S3cmd and shutil.which("s3cmd") is None:
        pytest.skip("no s3cmd")
    return request.param


@pytest.fixture(params=["ours to theirs", "theirs to ours"])
def writer_and_reader(request, server, theirs):
    prefix = f"interop-{uuid.uuid4().hex}"
    pair = Ours(server, prefix), theirs(server, prefix)
    return pair if request.param == "ours to theirs" else pair[::-1]


def make_file(path, n_bytes, seed=0):
    path.write_bytes(random.Random(seed).randbytes(n_bytes))
    return path


@pytest.mark.parametrize("n_bytes", SIZES)
def test_sizes(writer_and_reader, tmp_path, n_bytes):
    writer, reader = writer_and_reader
    written = make_file(tmp_path / "written", n_bytes)
    writer.put("object", written)
    reader.get("object", tmp_path / "read")
    assert (tmp_path / "read").read_bytes() == written.read_bytes()
    assert reader.list() == {"object": n_bytes}


def test_keys(writer_and_reader, tmp_path):
    writer, reader = writer_and_reader
    for i, key in enumerate(KEYS):
        writer.put(key, make_file(tmp_path / "written", 100 + i, i))
    assert reader.list() == {key: 100 + i for i, key in enumerate(KEYS)}
    for i, key in enumerate(KEYS):
        reader.get(key, tmp_path / f"read{i}")
        want = make_file(tmp_path / "written", 100 + i, i).read_bytes()
        assert (tmp_path / f"read{i}").read_bytes() == want


def test_both_list_the_same_beyond_one_page(server, tmp_path):
    prefix = f"interop-{uuid.uuid4().hex}"
    ours, boto = Ours(server, prefix), Boto3(server, prefix)
    for i in range(1005):
        boto.client.put_object(Bucket=boto.bucket, Key=f"{prefix}/{i:04}", Body=b"x")
    listed = ours.list()
    assert listed == boto.list() and len(listed) == 1005
    assert list(listed) == sorted(listed)
