"""Sharded models: each rank, a process, publishes its part. A follower's weights must be the
whole tensors, bit for bit, at every version."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")
pytest.importorskip("transformers")

import deltawire as dw  # noqa: E402

RANK = pathlib.Path(__file__).parent / "rank.py"


@pytest.fixture
def launch(tmp_path, url):
    """Runs jobs, one after the other; gives what they printed, and what went wrong."""
    def run(jobs, ranks):
        (tmp_path / "truth").mkdir()
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(RANK), jobs, str(ranks), url,
             str(tmp_path / "truth")], capture_output=True, text=True, timeout=300,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines(), done.stderr
    return run


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def check(url, truth, only=None):
    """Goes to versions one by one; they must be those that are written down."""
    head = dw.Stream(url).head
    wanted = {v: torch.load(truth / f"{v}.pt") for v in only or range(head + 1)}
    for version, tensors in wanted.items():
        into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        extra = dw.Stream(url).tensors.keys() - into.keys()
        into |= {name: torch.zeros(4, dtype=torch.bfloat16) for name in extra}
        with dw.Follower(url, tensors=into) as follower:
            follower.sync(version)
        for name, tensor in tensors.items():
            assert raw(into[name]) == raw(tensor), (version, name)
    return head


def test_qwen3_with_fully_shard(url, launch, tmp_path):
    said, trouble = launch("train", 2)
    assert said == ["statuses 0 0"], trouble
    assert check(url, tmp_path / "truth") == 3
    assert [v.step for v in dw.Stream(url).versions()] == ["", "2", "4", "6"]


def test_every_layout(url, launch, tmp_path):
    said, trouble = launch("layouts", 4)
    assert said == ["statuses 0 0 0 0"], trouble
    assert check(url, tmp_path / "truth") == 3
    assert dw.Stream(url).tensors["of_the_last_rank"] == ("BF16", (4,))


@pytest.mark.parametrize("job", ["die", "die_amid"])
def test_a_rank_is_killed_and_the_job_starts_again(url, launch, tmp_path, job):
    said, trouble = launch(f"{job},resume", 2)
    assert said[1:] == ["statuses 0 -9", "statuses 0 0"], (said, trouble)
    if job == "die":
        assert re.search(
            r"failed: .*receipt.* did not come in time: version 2 was not committed", said[0])
    else:  # its receipt came before the end of it, or not
        assert re.search("committed 2|version 2 was not committed", said[0])
    head = 2 if said[0] == "committed 2" else 1  # of the first job
    assert check(url, tmp_path / "truth", only=[0, 1, head + 1]) == head + 1
