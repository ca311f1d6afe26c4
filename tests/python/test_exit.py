"""The end of the interpreter, with work under way."""
import os
import subprocess
import sys
import textwrap

import pytest

import deltawire as dw
from hanging_s3 import HangingS3

SLOW = """
    import sys, threading, numpy as np, deltawire as dw
    url = sys.argv[1]
    weights = {"w": np.random.default_rng(0).integers(0, 1 << 60, 1 << 20)}
    publisher = dw.Publisher(url, weights)
"""


def test_a_publish_under_way_is_finished(python, url):
    python(SLOW + """
    for i in range(3):
        weights["w"] += 1
        publisher.publish()
    """, url)
    assert dw.Stream(url).head == 3


def test_threads_of_all_kinds_are_in_calls(python, url):
    out = python(SLOW + """
    def publish():
        while True:
            publisher.wait(publisher.publish())
    def follow():
        follower = dw.Follower(url, tensors={"w": np.zeros_like(weights["w"])})
        kept.append(follower)
        while True:
            follower.sync()
            follower.wait(max_wait=0.01)
            ready.set()
    kept, ready = [], threading.Event()
    for work in (publish, publish, follow, follow):
        threading.Thread(target=work, daemon=True).start()
    ready.wait()
    print("end")
    """, url)
    assert out == "end\n"


def test_nothing_is_closed_and_all_is_global(python, url):
    python(SLOW + """
    follower = dw.Follower(url, tensors={"w": np.zeros_like(weights["w"])})
    follower.sync()
    stream = dw.Stream(url)
    store = dw.Store(url)
    cycle = [publisher, follower, stream, store]
    cycle.append(cycle)
    weights["self"] = cycle
    """, url)


def test_an_exception_ends_it(python, url):
    python(SLOW + """
    publisher.publish()
    raise SystemExit(7)
    """, url, status=7)


def test_views_outlive_everything(python, tmp_path):
    python("""
    import sys, numpy as np, deltawire as dw
    dw.write_checkpoint("m.safetensors", {"x": np.arange(1000)})
    view = np.from_dlpack(dw.Checkpoint("m.safetensors")["x"])
    sys.view = view
    """)


HANGING = """
    import sys, numpy as np, deltawire as dw
    store = dw.Store("s3://bucket/run", endpoint=sys.argv[1])
    weights = {"w": np.zeros(1 << 20)}
    publisher = dw.Publisher(store, weights, exit_timeout=float(sys.argv[2]))
    publisher.wait(publisher.publish())
    print("hang", flush=True)
    sys.stdin.readline()
    weights["w"] += 1
    ticket = publisher.publish()
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end, exit_timeout, said", [
    ("pass", 0.2, ""),  # the end of the interpreter waits as long as exit_timeout says
    ("pass", 0, ""),
    # close gives up too, and tells what became of the version
    ("try:\n    publisher.close(timeout=0.2)\nexcept dw.Cancelled:\n    print('gave up')", 0.2,
     "gave up\n"),
    # Ctrl-C ends every wait for it
    ("import signal\n"
     "WAITS = [publisher.wait, publisher.drain, publisher.publish, publisher.close]\n"
     "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
     "for wait in WAITS:\n"
     "    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.2)\n        wait()\n"
     "    except KeyboardInterrupt:\n        print('stopped')", 0.2,
     "stopped\n" * 4),
])
def test_a_store_that_hangs(monkeypatch, end, exit_timeout, said):
    """What is under way is given up when time is over: the stream keeps its head."""
    script = textwrap.dedent(HANGING) + end
    with HangingS3() as server:
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", script, server.endpoint,
             str(exit_timeout)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
        assert child.stdout.readline() == "hang\n", child.stderr.read()
        server.hangs.set()
        child.stdin.write("\n")
        child.stdin.flush()
        assert server.reached.wait(300)
        out, err = child.communicate("\n", timeout=300)
        assert (child.returncode, out) == (0, said), err
        server.hangs.clear()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with dw.Store("s3://bucket/run", endpoint=server.endpoint) as store:
            assert dw.Stream(store).head == 1
