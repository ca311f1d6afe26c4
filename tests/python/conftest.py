"""The package `deltawire`, as installed: the stage `package` of scripts/test.sh builds the
wheel and puts it on the path."""
import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

# Small models: more threads only wait for each other. Read when PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in its background with SIGINT ignored, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def url(tmp_path):
    """Of a stream that is not there yet."""
    return f"file://{tmp_path}/stream"


@pytest.fixture
def crowd():
    """Runs a function in several threads at once; what one of them raises comes out."""
    def run(n_threads, work):
        with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
            for done in [pool.submit(work) for _ in range(n_threads)]:
                done.result()
    return run


@pytest.fixture
def wait_until():
    """Waits until a condition is true, and gives what it gave. The limit only ends a test that
    hangs: a busy machine may let a process stand still for many seconds."""
    def wait(condition, limit_s=300):
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)
        return found
    return wait


@pytest.fixture
def python(tmp_path):
    """Runs a script in another interpreter, and gives its output. A crash or a hang fails."""
    def run(script, *args, status=0, timeout=300, **variables):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script),
             *map(str, args)],
            capture_output=True, text=True, timeout=timeout, cwd=tmp_path,
            env={**os.environ, **variables})
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout
    return run
