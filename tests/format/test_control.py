"""A reader of the control block, written only from FORMAT.md, section 13.

DELTAWIRE names the command; build/deltawire by default.
"""
import fcntl
import mmap
import os
import pathlib
import struct
import subprocess

import pytest

import dwlib
from decoder import Tensor, digest, read_checkpoint, state_digest, write_safetensors

DELTAWIRE = os.environ.get("DELTAWIRE", str(dwlib.ROOT / "build" / "deltawire"))
NONE = 2**64 - 1


class Reader:
    """Python has no fences. Loads of aligned numbers are atomic on this machine, and these tests
    wait for the end of the writer anyway."""

    def __init__(self, into):
        self.into = pathlib.Path(into)
        self.file = open(self.into / ".deltawire/control", "r+b", buffering=0)
        if os.fstat(self.file.fileno()).st_size != 4096:
            raise ValueError("no control block")
        self.block = mmap.mmap(self.file.fileno(), 4096)
        if self.block[:8] != b"DWCTRL1\0" or self.load(8) != 1:
            raise ValueError("no control block")
        pending = any(self.into.glob(".deltawire/*patch"))
        if not self.is_locked(0, 128) and (self.load(128) & 1 or pending):
            raise BlockingIOError("start the follower first")
        self.slot = next(512 + 64 * i for i in range(56) if self.lock(512 + 64 * i, 64))
        self.store(self.slot, 0)

    def close(self):
        self.block.close()
        self.file.close()

    def load(self, offset):
        return struct.unpack_from("<Q", self.block, offset)[0]

    def store(self, offset, number):
        struct.pack_into("<Q", self.block, offset, number)

    def lock(self, offset, n_bytes):
        try:
            fcntl.fcntl(self.file, fcntl.F_OFD_SETLK,
                        struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset, n_bytes, 0))
        except OSError:
            return False
        return True

    def is_locked(self, offset, n_bytes):
        answer = fcntl.fcntl(self.file, fcntl.F_OFD_GETLK,
                             struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset,
                                         n_bytes, 0))
        return struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK

    def begin(self):
        sequence, version, state, files = (self.load(128 + 8 * i) for i in range(4))
        whole = sequence % 2 == 0 and self.load(128) == sequence and version != NONE
        return (sequence, version, state) if whole else None

    def end(self, mark):
        return self.load(128) == mark[0]

    def hold(self):
        self.store(self.slot, 1)
        mark = self.begin()
        if not mark:
            self.drop()
        return mark

    def drop(self):
        self.store(self.slot, 0)

    def state(self):
        """The digest that the weights have."""
        return state_of(self.into / "model.safetensors")


def deltawire(*arguments):
    return subprocess.run([DELTAWIRE, *map(str, arguments)], capture_output=True, text=True)


def state_of(path):
    tensors = read_checkpoint(path)
    return state_digest(tensors, {name: digest(t.data) for name, t in tensors.items()})


@pytest.fixture
def stream(tmp_path):
    url = f"file://{tmp_path}/stream"
    for version in range(4):
        data = bytes((i * 7 + version * (i % 50 == 0)) % 256 for i in range(4000))
        write_safetensors(tmp_path / f"{version}.safetensors",
                          {"w": Tensor("BF16", (2000,), data)})
        answer = deltawire("publish", url, tmp_path / f"{version}.safetensors",
                           "--baseline", tmp_path / "baseline")
        assert answer.returncode == 0, answer.stderr
    return url


def test_reader(tmp_path, stream):
    into = tmp_path / "into"

    def pull(version):
        return deltawire("pull", stream, "--into", into, "--at", version, "--reader-wait",
                         0.05)

    assert pull(0).returncode == 0
    reader = Reader(into)
    assert reader.block[64:128].rstrip(b"\0").decode() in (
        into / ".deltawire/state.json").read_text()
    for version in (1, 2, 3):
        seen = reader.begin()
        assert seen[1] == version - 1
        assert reader.end(seen)
        held = reader.hold()
        assert reader.state() == held[2]
        answer = pull(version)
        assert answer.returncode != 0
        assert "has held the weights" in answer.stderr
        assert reader.state() == held[2]  # unchanged, although the writer tried
        with pytest.raises(BlockingIOError):  # a new reader learns that it did not finish
            Reader(into)
        reader.drop()
        assert pull(version).returncode == 0
        assert not reader.end(seen)
        mark = reader.hold()
        assert mark[1] == version
        assert mark[2] == reader.state() == state_of(tmp_path / f"{version}.safetensors")
        reader.drop()
    other = Reader(into)
    assert other.slot != reader.slot
    reader.close()
    again = Reader(into)
    assert again.slot < other.slot
