"""The back end of vLLM without vLLM, on the CPU: tests/gpu/vllm_check.py."""
import os
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(os.environ.get("DW_TEST_DIR", pathlib.Path(__file__).parents[1]),
                     "gpu/vllm_check.py")


def test_patches_are_a_fresh_load():
    pytest.importorskip("torch")
    # a process of its own: it puts a stand-in in the place of vLLM
    done = subprocess.run([sys.executable, CHECK, "cpu"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
