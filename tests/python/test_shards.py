"""Ranks that publish parts of a model, which become one version."""
import concurrent.futures
import os
import signal

import numpy as np
import pytest

import deltawire as dw


def model(seed=0):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(40, 5)).astype("f4"), "b": rng.integers(0, 9, 7)}


class Rank:
    """Rank 0 has rows 0 to 25 of w, rank 1 the rest, and all of b."""

    def __init__(self, url, weights, rank, **options):
        w = weights["w"].reshape(-1)
        mine = [("w", 0, w[:130])] if rank == 0 else [("w", 130, w[130:]), ("b", 0, weights["b"])]
        self.publisher = dw.Publisher(
            url, {"w": (None, "F32", (40, 5)), "b": (None, "I64", (7,))}, shards=mine,
            rank=rank, n_ranks=2, **{"job": "one", "rank_timeout": 120, **options})


@pytest.fixture
def ranks():
    """Opens both at once: each waits for the other."""
    opened = []

    def start(url, weights, **options):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            each = [pool.submit(Rank, url, weights, rank, **options) for rank in range(2)]
            opened[:] = [one.result().publisher for one in each]
        return opened
    yield start
    for publisher in opened:
        publisher.close(timeout=0)


def rounded(weights):
    into = {"w": (np.zeros((40, 5), "u2"), "BF16"), "b": weights["b"]}
    dw.cast(weights, into)
    return into


@pytest.mark.parametrize("masters", [(), ("w",)])
def test_receipts_through_the_store(url, ranks, masters):
    weights = model()
    publishers = ranks(url, weights, as_bf16=masters)
    for version in range(1, 4):
        weights["w"][version::7] *= 1.5
        weights["b"] += version
        tickets = [p.publish(step=version, unchanged=()) for p in publishers]
        reports = [p.wait(t) for p, t in zip(publishers, tickets)]
        state = dw.digest(rounded(weights) if masters else weights).state
        assert [r.state for r in reports] == [state, state]
        assert [r.version for r in reports] == [version, version]
    assert dw.Stream(url).tensors["w"][0] == ("BF16" if masters else "F32")


def walk(publisher, mine, steps):
    """Publishes steps; the weights of step N are N everywhere. A step that fails costs its
    version."""
    for step in steps:
        for array in mine:
            array[:] = step
        publisher.publish(step=step)
        try:
            last = publisher.wait()
        except dw.Unavailable as error:
            last = error
    return last


@pytest.mark.parametrize("first, second", [
    (range(1, 8), range(2, 8)), (range(2, 8), range(1, 8)), ([1, 2, 2, 3, 7], [1, 3, 3, 5, 7])])
def test_ranks_that_lose_each_other_meet_again(url, ranks, first, second):
    weights = model()
    weights["w"][:], weights["b"][:] = 0, 0
    w = weights["w"].reshape(-1)
    publishers = ranks(url, weights)
    parts = [[w[:130]], [w[130:], weights["b"]]]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        each = [pool.submit(walk, *of, steps)
                for *of, steps in zip(publishers, parts, (first, second))]
        assert {one.result().version for one in each} == {dw.Stream(url).head}
    served = {name: np.full_like(array, 99) for name, array in weights.items()}
    with dw.Follower(url, tensors=served) as follower:
        for version in dw.Stream(url).versions():
            follower.sync(version.version)
            step = int(version.step or 0)
            assert all((array == step).all() for array in served.values()), version


def test_what_is_refused(url):
    weights = model()
    whole = [("w", 0, weights["w"]), ("b", 0, weights["b"])]
    shapes = {"w": (None, "F32", (40, 5)), "b": (None, "I64", (7,))}
    for wrong, error, text in [
        ({"shards": [("x", 0, weights["w"])]}, ValueError, "'x'"),
        ({"shards": [("w", 0, weights["b"])]}, dw.Invalid, "element type"),
        ({"shards": [("w", 1, weights["w"])]}, dw.Invalid, "w"),
        ({"shards": whole, "when_busy": "fold"}, ValueError, "when_busy"),
        ({"shards": whole, "n_ranks": 2}, dw.Invalid, "job"),
        ({"shards": whole, "as_bf16": ["b"]}, dw.Invalid, "F32"),
        ({"shards": whole, "as_bf16": "w"}, TypeError, "as_bf16"),
        ({}, TypeError, "bytes-like"),
    ]:
        with pytest.raises(error, match=text):
            dw.Publisher(url, shapes, **wrong)
    with dw.Publisher(url, shapes, shards=whole) as publisher:  # one rank that has everything
        with pytest.raises(ValueError, match="unchanged"):
            publisher.publish(unchanged=["nothing"])
        weights["w"] += 1
        assert publisher.wait(publisher.publish()).n_changed == 200


def test_a_rank_that_never_comes(url, tmp_path):
    """Rank 0 names the rank whose receipt is missing, nothing is half committed, and the next
    start goes on."""
    weights = model()
    with pytest.raises(dw.Unavailable, match="rank 0 of job 'one' did not open"):
        Rank(url, weights, 1, rank_timeout=0.1)
    with pytest.raises(dw.Unavailable, match="rank 1 did not come in time: start all ranks"):
        Rank(url, weights, 0, rank_timeout=0.1)
    with pytest.raises(dw.NotFound):
        dw.Follower(url, tensors={n: np.zeros_like(t) for n, t in weights.items()}, open_timeout=0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        each = [pool.submit(Rank, url, weights, rank, job="two") for rank in range(2)]
        for one in each:
            one.result().publisher.close()
    assert dw.Stream(url).head == 0
    assert os.listdir(tmp_path / "stream" / "commits")


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_the_wait_for_other_ranks(url, rank):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            Rank(url, model(), rank, rank_timeout=600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_while_ranks_agree(url, ranks):
    """Its exception must not become one of a version, which training outlives."""
    def agree(_):
        raise KeyboardInterrupt

    first, _ = ranks(url, model(), agree=agree, max_wait=60)
    with pytest.raises(KeyboardInterrupt):
        first.publish(step=1)
        for _ in range(1000):  # Python looks for signals now and then
            pass
    with pytest.raises(dw.Cancelled):  # the other rank does not come
        first.close(timeout=0)
