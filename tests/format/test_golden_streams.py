"""Streams that an earlier deltawire wrote, read and written on by this version.

tests/golden/make_streams.py made them. The weights are compared with the hashes in
expected.json, which numpy gave. DELTAWIRE names the command; build/deltawire by default.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from decoder import Tensor, digest, read_checkpoint, state_digest, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "streams"
DELTAWIRE = os.environ.get("DELTAWIRE", str(ROOT / "build" / "deltawire"))
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
CASES = sorted(EXPECTED)


class Case:
    """A copy of a golden stream, and of what is beside it."""

    def __init__(self, name, tmp_path):
        self.path = tmp_path / name
        shutil.copytree(GOLDEN / name, self.path, symlinks=True)
        self.url = f"file://{self.path}/stream"
        self.cache = tmp_path / "cache"
        self.expected = EXPECTED[name]
        self.versions = self.expected["versions"]
        self.head = len(self.versions) - 1
        self.floor = self.expected.get("floor", 0)
        key = self.path / "trainer.key"
        if key.exists():
            key.chmod(0o600)  # git does not keep the mode
        self.trust = ["--trust", f"{key}.pub"] if key.exists() else []
        self.sign = ["--sign-key", key] if key.exists() else []
        base = self.expected.get("base")
        self.base = ["--base", self.path / base] if base else []
        self.base_ckpt = ["--base-ckpt", self.path / base] if base else []

    def run(self, *arguments, code=0):
        command = [str(a) for a in (DELTAWIRE, *arguments, "--json")]
        done = subprocess.run(command, capture_output=True, text=True,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.cache)})
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr

    def log(self):
        rows = self.run("log", self.url, "-n", "0", *self.trust)["versions"]
        return {row["version"]: row for row in rows}

    def pull(self, into, *options):
        return self.run("pull", self.url, "--into", self.path / into, *self.base, *self.trust,
                        *options)

    def is_at(self, into, version):
        holds(self.path / into, self.versions[version])

    def publish_next(self, *options):
        """The newest weights with every 50th byte of each tensor changed, as the next version."""
        self.pull("newest")
        tensors = {}
        for name, t in read_checkpoint(self.path / "newest").items():
            data = bytearray(t.data)
            data[::50] = bytes(b ^ 1 for b in data[::50])
            tensors[name] = Tensor(t.dtype, t.shape, bytes(data))
        checkpoint = self.path / f"next-{self.head + 1}"
        checkpoint.mkdir()
        write_safetensors(checkpoint / "model.safetensors", tensors)
        changed = sum(-(-len(t.data) // 50) for t in tensors.values())
        report = self.run("publish", self.url, checkpoint, "--step", f"s{self.head + 1}",
                          *self.sign, *self.trust, *options)
        self.head += 1
        assert (report["version"], report["changed"]) == (self.head, changed)
        digests = {name: digest(t.data) for name, t in tensors.items()}
        self.versions = self.versions + [{
            "sha256": {name: hashlib.sha256(t.data).hexdigest() for name, t in tensors.items()},
            "state": "%016x" % state_digest(tensors, digests)}]
        return report


def holds(directory, wanted):
    found = {name: hashlib.sha256(t.data).hexdigest()
             for name, t in read_checkpoint(directory).items()}
    assert found == wanted["sha256"], directory


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    return Case(request.param, tmp_path)


def test_log_names_every_version(case):
    rows = case.log()
    assert sorted(rows) == list(range(case.head + 1))
    for version, row in rows.items():
        assert row["state"] == case.versions[version]["state"]
        assert row["step"] == f"s{version}"
        assert ("key" in row) == bool(case.trust)
    status = case.run("status", case.url, *case.trust)
    assert (status["head"], status["floor"]) == (case.head, case.floor)


def test_verify_decodes_every_version(case):
    case.run("verify", case.url, *case.base, *case.trust)


def test_pull_gives_every_version(case):
    for version in range(case.floor, case.head + 1):
        case.pull(f"at-{version}", "--at", version)
        case.is_at(f"at-{version}", version)
    case.pull("at-0" if case.floor == 0 else f"at-{case.floor}")  # goes on by deltas
    case.is_at(f"at-{case.floor}", case.head)


def test_companion_files_come_along(tmp_path):
    case = Case("files", tmp_path)
    for version, files in enumerate(case.expected["files"]):
        case.pull("model", "--at", version)
        found = {p.name: p.read_text() for p in (case.path / "model").iterdir()
                 if not p.name.startswith(".") and p.suffix != ".safetensors"}
        assert found == files


@pytest.mark.parametrize("name", ["settled", "installing", "interrupted"])
def test_a_followers_directory_is_gone_on_with(name, tmp_path):
    """State file, control block, patch and companion files: at version 2, on the way to 3."""
    case = Case("files", tmp_path)
    into, own, files = case.path / name, case.path / name / ".deltawire", case.expected["files"]
    control = (own / "control").read_bytes()
    assert (control[:8], control[64:96].decode()) == (b"DWCTRL1\0", case.run(
        "status", case.url)["stream"])
    at, digest_of = (int.from_bytes(control[k:k + 8], "little") for k in (136, 144))
    assert (at, "%016x" % digest_of) == (2, case.versions[2]["state"])

    if name == "interrupted":
        case.run("recover", into)  # without the stream
        case.is_at(name, 3)
    else:
        assert case.run("verify", into)["version"] == 2
        report = case.pull(name, "--at", 2)
        assert (report["steps"], report["files_installed"], report["files_kept"]) == (0, 0, [])
        case.is_at(name, 2)
    for version in (3, 0, 3):
        report = case.pull(name, "--at", version)
        assert report["files_kept"] == []
        case.is_at(name, version)
        found = {p.name: p.read_text() for p in into.iterdir() if p.suffix in (".json", ".txt")}
        assert found == {**files[version], "notes.txt": "the user's\n"}
    assert {p.name for p in own.iterdir()} == {"control", "highest.json", "state.json"}


def test_an_older_head_than_a_directory_has_seen_is_refused(tmp_path):
    case = Case("files", tmp_path)
    (case.path / "stream" / "commits" / f"{3:020d}.json").unlink()
    (case.path / "stream" / "latest.json").unlink()
    case.run("pull", case.url, "--into", case.path / "settled", code=11)


def test_a_restart_is_one(tmp_path):
    case = Case("restarted", tmp_path)
    restart = case.expected["restart"]
    assert [v for v, row in case.log().items() if row.get("restart")] == [restart]
    case.pull("model", "--at", restart - 1)
    case.pull("model")
    case.is_at("model", case.head)


# The trainer's weights are not in a quantised stream.
@pytest.mark.parametrize("case", [c for c in CASES if "quantize" not in EXPECTED[c]], indirect=True)
def test_a_stream_is_published_to(case):
    for _ in range(2):
        case.publish_next("--baseline", case.path / "baseline", "--fold", "2", *case.base_ckpt)
    case.pull("fresh")
    case.is_at("fresh", case.head)
    case.run("verify", case.url, *case.base, *case.trust)


def test_a_stream_is_repaired_collected_and_copied(case):
    if "quantize" not in case.expected:
        case.publish_next("--baseline", case.path / "baseline", *case.base_ckpt)
    case.pull("newest")
    case.run("repair", case.url, case.path / "newest", *case.sign, *case.trust)
    case.run("gc", case.url, "--keep", "1", *case.trust)
    case.run("cp", case.url, f"file://{case.path}/copied", *case.trust)
    case.url = f"file://{case.path}/copied"
    case.pull("fresh")
    case.is_at("fresh", case.head)


def test_the_golden_files_stay_small():
    assert sum(f.stat().st_size for f in GOLDEN.rglob("*") if f.is_file()) < 1 << 20
