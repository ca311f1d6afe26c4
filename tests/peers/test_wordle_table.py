"""The table of examples/trl-wordle, while an agent has no pause of its engine yet."""
import array
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import deltawire

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples/trl-wordle")]
import train  # noqa: E402


@pytest.fixture
def stream(tmp_path):
    url, weights = f"file://{tmp_path}/run", {"w": array.array("f", range(1000))}
    with deltawire.Publisher(url, weights) as publisher:
        weights["w"][3] += 1
        report = publisher.wait(publisher.publish())
    return types.SimpleNamespace(url=url, report=report)


@pytest.fixture
def agent(stream):
    """Its history has versions but no pauses, because nobody applies them here."""
    process = subprocess.Popen(
        [os.environ["DELTAWIRE"], "serve-status", stream.url, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process.stdout.readline().split()[-1].rstrip("/")
    process.terminate()
    process.wait()
    process.stdout.close()


def test_a_step_without_a_pause(stream, agent, capsys):
    while not (rows := [row for row in train.get(f"{agent}/status")["history"]
                        if row["version"] == 1]):
        time.sleep(0.1)
    assert rows[0]["stopped_ms"] is None
    transfer = types.SimpleNamespace(version=1, report=stream.report, seconds=[0.25],
                                     tensors={"w": train.torch.zeros(1000)})
    table = train.Table(transfer, ["http://127.0.0.1:9"], [agent])
    table.on_log(None, types.SimpleNamespace(global_step=22), None, logs={"reward": 0.5})
    assert capsys.readouterr().out.split() == \
        ["22", "0.500", "1", "-", f"{stream.report.n_bytes:,}", "0.10%", "-", "0.25", "s"]
    assert table.stopped_ms == []
