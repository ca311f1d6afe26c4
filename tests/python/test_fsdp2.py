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
pytest.importorskip("peft")

import deltawire as dw  # noqa: E402
from test_quantize import expected  # noqa: E402

RANK = pathlib.Path(__file__).parent / "rank.py"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs all jobs in one process; returns the folder of one, its output and its errors."""
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(RANK), str(folder), "train:2", "layouts:4", "merged:2",
         "die,resume:2", "die_amid,resume:2", "fp8-block:2", "int8-row:2",
         "quantised_die,quantised_resume:2", "refuse:2", "lose:2"], capture_output=True, text=True, timeout=1200,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})

    def of(job):
        assert done.returncode == 0, done.stderr
        return folder / job, (folder / job / "said").read_text().splitlines(), done.stderr
    return of


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def check(folder, only=None, quantised=lambda tensors: tensors):
    """Goes to versions one by one and compares them with the expected ones."""
    url = f"file://{folder}/stream"
    head, names = dw.Stream(url).head, dw.Stream(url).tensors.keys()
    for version in only or range(head + 1):
        wanted = quantised(torch.load(folder / f"{version}.pt"))
        into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        into |= {name: torch.zeros(4, dtype=torch.bfloat16) for name in names - into.keys()}
        with dw.Follower(url, tensors=into) as follower:
            follower.sync(version)
        for name, tensor in wanted.items():
            assert raw(into[name]) == raw(tensor), (version, name)
    return head, dw.Stream(url)


def test_qwen3_with_fully_shard(ran):
    folder, said, trouble = ran("train")
    assert said == ["statuses 0 0"], trouble
    head, stream = check(folder)
    assert head == 3 and [v.step for v in stream.versions()] == ["", "2", "4", "6"]


def test_adapters_are_merged(ran):
    folder, said, trouble = ran("merged")
    assert said == ["statuses 0 0"], trouble
    head, _ = check(folder)
    assert head == 5  # three versions of each model


def test_every_layout(ran):
    folder, said, trouble = ran("layouts")
    assert said == ["statuses 0 0 0 0"], trouble
    head, stream = check(folder)
    assert head == 3 and stream.tensors["of_the_last_rank"] == ("BF16", (4,))


@pytest.mark.parametrize("job", ["die", "die_amid"])
def test_a_rank_is_killed_and_the_job_starts_again(ran, job):
    folder, said, trouble = ran(job)
    assert said[1:] == ["statuses 0 -9", "statuses 0 0"], (said, trouble)
    if job == "die":
        assert re.search(
            r"failed: .*rank 1 did not come in time.*: version 2 was not committed", said[0])
    else:  # its receipt came before its end, or not
        assert re.search("committed 2|version 2 was not committed", said[0])
    head = 2 if said[0] == "committed 2" else 1  # of the first job
    newest, stream = check(folder, only=[0, 1, head + 1, head + 2])
    assert newest == head + 2
    assert stream.version(head + 1).state == stream.version(0).state  # discarded weights are gone


def test_ranks_that_raise_do_not_keep_others_waiting(ran):
    folder, said, trouble = ran("refuse")
    assert said[-1] == "statuses 0 0", (said, trouble)
    for wanted in ["rank 1 names Invalid no name for columns",
                   "rank 0 names Unavailable rank 1 failed: no name for columns",
                   "rank 1 publish .*this key needs a directory",
                   r"rank 0 publish \(2, PublishReport\(version=1",
                   "rank 1 open .*File too large",
                   "rank 0 open Unavailable .*rank 1 (failed|has left) .*File too large"]:
        assert any(re.search(wanted, line) for line in said), (wanted, said)
    assert check(folder, only=[0])[0] == 1


def test_ranks_that_lose_each_other_meet_again(ran):
    folder, said, trouble = ran("lose")
    assert said[-1] == "statuses 0 0", (said, trouble)
    url = f"file://{folder}/stream"
    stream = dw.Stream(url)
    assert [v.step for v in stream.versions()] == ["", "2", "4", "5", "6", "9"], said
    for version in stream.versions():
        into = {name: torch.zeros(8, 6).bfloat16() for name in ("rows", "columns")}
        with dw.Follower(url, tensors=into, report=False) as follower:
            follower.sync(version.version)
        assert all((t == int(version.step or 0)).all() for t in into.values()), (version, into)


@pytest.mark.parametrize("scheme", ["fp8-block", "int8-row"])
def test_quantised(ran, scheme):
    folder, said, trouble = ran(scheme)
    assert said == ["statuses 0 0"], trouble
    chosen = {"up.weight", "down.weight", "few.weight", "columns.weight"}
    head, _ = check(folder, quantised=lambda tensors: expected(tensors, scheme, chosen))
    assert head == 4


def test_a_rank_is_killed_before_it_agrees_on_scales(ran):
    folder, said, trouble = ran("quantised_die")
    assert said[1:] == ["statuses 0 -9", "statuses 0 0"], (said, trouble)
    assert re.search(r"failed: .*ranks could not agree on the scales", said[0]), said
    head, _ = check(folder, quantised=lambda tensors: expected(tensors, "fp8-block", set("abc")))
    assert head == 1
