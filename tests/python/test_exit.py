"""The end of the interpreter, with work under way."""

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
    import deltawire as dw
    assert dw.Stream(url).head == 3


def test_or_given_up_when_time_is_over(python, url):
    python(SLOW.replace("weights)", "weights, exit_timeout=0)") + """
    weights["w"] += 1
    publisher.publish()
    """, url)
    import deltawire as dw
    assert dw.Stream(url).head in (0, 1)


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
