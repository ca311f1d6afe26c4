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
    """Runs the ranks of a job; gives exit statuses and what they printed."""
    truth, jobs = tmp_path / "truth", []
    truth.mkdir()

    def run(work, ranks):
        meeting = tmp_path / f"meeting-{len(jobs)}"
        jobs.append([subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(RANK), work, str(rank), str(ranks),
             str(meeting), url, str(truth)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(ranks)])
        outs = [child.communicate(timeout=300) for child in jobs[-1]]
        return [child.returncode for child in jobs[-1]], outs
    yield run
    for child in sum(jobs, []):
        if child.poll() is None:
            child.kill()


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def check(url, truth, only=None):
    """Goes through the versions one by one; they must be those that are written down."""
    head = dw.Stream(url).head
    wanted = {v: torch.load(truth / f"{v}.pt") for v in only or range(head + 1)}
    follower = None
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
    statuses, outs = launch("train", 2)
    assert statuses == [0, 0], outs
    assert check(url, tmp_path / "truth") == 3
    info = [v for v in dw.Stream(url).versions()]
    assert [v.step for v in info] == ["", "2", "4", "6"]


def test_every_layout(url, launch, tmp_path):
    statuses, outs = launch("layouts", 4)
    assert statuses == [0, 0, 0, 0], outs
    assert check(url, tmp_path / "truth") == 3
    assert dw.Stream(url).tensors["of_the_last_rank"] == ("BF16", (4,))


@pytest.mark.parametrize("work", ["die", "die_amid"])
def test_a_rank_is_killed_and_the_job_starts_again(url, launch, tmp_path, work):
    statuses, outs = launch(work, 2)
    assert statuses == [0, -9], outs
    said = outs[0][0]
    if work == "die":
        assert re.search(r"failed: .*receipt.* did not come in time: version 2 was not committed",
                         said), outs
        assert dw.Stream(url).head == 1
    else:  # its receipt came before the end of it, or not
        assert re.search("committed 2|version 2 was not committed", said), outs
        assert dw.Stream(url).head == (2 if "committed 2" in said else 1)
    head = check(url, tmp_path / "truth")
    statuses, outs = launch("resume", 2)
    assert statuses == [0, 0], outs
    assert check(url, tmp_path / "truth", only=[0, head + 1]) == head + 1
