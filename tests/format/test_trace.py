"""Real changes: tests/data/trace, a slice of an RL run (see tests/data/make_slice.py)."""
import filecmp
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

import decoder
import dwlib

TRACE = dwlib.ROOT / "tests" / "data" / "trace"
STATES = json.loads((TRACE / "states.json").read_text())["states"]
DECODED_IN_PYTHON = {1, 6, 12}  # it is slow


def sha256(tensors):
    return hashlib.sha256(b"".join(tensors[name].data for name in sorted(tensors))).hexdigest()


@pytest.fixture(scope="module")
def versions():
    """The weights before step 1 and after each step, by the TRL files."""
    found = [decoder.read_checkpoint(TRACE / "base")]
    for step in range(1, len(STATES)):
        found.append(dwlib.apply(found[-1], trl_delta(step)))
    return found


def trl_delta(step):
    return (TRACE / "deltas" / f"step_{step:06d}.safetensors").read_bytes()


def test_states(versions):
    assert [sha256(tensors) for tensors in versions] == [STATES[str(n)] for n in range(13)]


@pytest.mark.parametrize("step", range(1, 13))
def test_every_codec(versions, step):
    base, new = versions[step - 1:step + 1]
    for codec in dwlib.CODECS:
        content = dwlib.recode(base, trl_delta(step), codec)
        assert content == dwlib.diff(base, new, codec, base_version=step - 1, new_version=step)
        assert sha256(dwlib.apply(base, content)) == STATES[str(step)]
        if codec == "class" and step in DECODED_IN_PYTHON:
            assert decoder.apply_delta(base, content) == new


def test_one_delta_over_all_steps(versions):
    content = dwlib.diff(versions[0], versions[12], base_version=0, new_version=12)
    assert decoder.apply_delta(versions[0], content) == versions[12]


def test_size(versions):
    """Whole files of tensors far smaller than a block, including the headers."""
    n_bytes = n_changed = 0
    for step in range(1, 13):
        content = dwlib.diff(versions[step - 1], versions[step])
        n_bytes += len(content)
        n_changed += dwlib.Delta(content).info().n_changed
    assert 8 * n_bytes / n_changed < 8


def test_the_slice_is_what_its_script_makes(tmp_path):
    shared = pathlib.Path(os.environ.get("DW_SHARED", dwlib.ROOT.parent / "shared"))
    source = shared / "data" / "rl-trace"
    if not source.exists():
        pytest.skip("the whole trace is not here")
    script = dwlib.ROOT / "tests" / "data" / "make_slice.py"
    subprocess.run([sys.executable, script, source, tmp_path / "trace"], check=True)
    made = sorted(p.relative_to(tmp_path / "trace") for p in (tmp_path / "trace").rglob("*.*"))
    assert made == sorted(p.relative_to(TRACE) for p in TRACE.rglob("*.*"))
    assert filecmp.cmpfiles(tmp_path / "trace", TRACE, made, shallow=False)[0] == made
    assert sum(p.stat().st_size for p in TRACE.rglob("*.*")) <= 2_000_000
