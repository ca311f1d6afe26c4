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

# For small models more threads only wait for each other. PyTorch reads this at import.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background processes with SIGINT ignored, and Python keeps that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def url(tmp_path):
    """The URL of a stream that does not exist yet."""
    return f"file://{tmp_path}/stream"


@pytest.fixture
def in_threads():
    """Runs a function in several threads at once, and raises the exception of one of them."""
    def run(n_threads, work):
        with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
            for done in [pool.submit(work) for _ in range(n_threads)]:
                done.result()
    return run


@pytest.fixture
def wait_until():
    """Waits until a condition is true, and returns its value. The limit only ends a test that
    hangs: on a busy machine a process may stop for many seconds."""
    def wait(condition, limit_s=300):
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)
        return found
    return wait


@pytest.fixture
def python(tmp_path):
    """Runs a script in another interpreter, and returns its output. A crash or a hang fails."""
    def run(script, *args, status=0, timeout=300, **variables):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script),
             *map(str, args)],
            capture_output=True, text=True, timeout=timeout, cwd=tmp_path,
            env={**os.environ, **variables})
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout
    return run
