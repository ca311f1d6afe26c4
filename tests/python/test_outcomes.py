"""Versions that nobody waits for: what fails is reported, and training goes on."""
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402
from hanging_s3 import HangingS3  # noqa: E402


@pytest.fixture
def model():
    torch.manual_seed(1)
    return torch.nn.Linear(64, 64).bfloat16()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=1)


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


class BrokenObjects:
    """A directory store into which no object can be written, because a file replaces the
    directory."""

    def __init__(self, tmp_path):
        self.objects = Path(tmp_path, "stream", "objects")

    def __enter__(self):
        self.objects.rename(self.objects.with_name("away"))
        self.objects.touch()

    def __exit__(self, *_):
        self.objects.unlink()
        self.objects.with_name("away").rename(self.objects)


def wait_idle(publisher):
    """Waits until nothing is in progress, without asking for results."""
    assert publisher.native.idle(300)


def followed(url, model):
    into = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with deltawire.torch.Follower(into, url) as follower:
        follower.sync()
    return all(torch.equal(into[name], p) for name, p in model.named_parameters())


def test_a_trainer_that_was_replaced_stops(url, model):
    optimizer = optimizer_of(model)
    first = deltawire.torch.Publisher(model, optimizer, url=url)
    step(model, optimizer)
    first.wait()
    second = deltawire.torch.Publisher(model, url=url)
    step(model, optimizer)  # this version is refused
    wait_idle(first)
    for _ in range(2):  # each later step reports it
        with pytest.raises(dw.Conflict, match="another|took"):
            step(model, optimizer)
    second.close()
    first.close()


def test_a_failed_version_warns_once_and_the_next_covers_it(tmp_path, url, model):
    optimizer, errors = optimizer_of(model), []
    with deltawire.torch.Publisher(model, optimizer, url=url, on_error=errors.append) as publisher:
        step(model, optimizer)
        publisher.wait()
        with warnings.catch_warnings(record=True) as seen, BrokenObjects(tmp_path):
            warnings.simplefilter("always")
            for _ in range(4):
                step(model, optimizer)
                wait_idle(publisher)
        seen = [w for w in seen if w.category is dw.PublishWarning]
        assert len(seen) == 1 and "objects" in str(seen[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(model, optimizer)
        assert len(errors) == 4 and all(isinstance(e, dw.Error) for e in errors)
        assert publisher.wait().version == 2
    assert followed(url, model)


@pytest.mark.parametrize("at_open", [True, False])
def test_a_restart_is_reported(tmp_path, at_open):
    """Version 3 of this stream does not decode: the next one holds the whole model."""
    torn = Path(__file__).parents[1] / "golden" / "torn_stream"
    shutil.copytree(torn, tmp_path / "stream")
    weights = {"w": torch.ones(120, 100, dtype=torch.bfloat16)}
    url, restarts = f"file://{tmp_path}/stream", "version 3 .* version 4 restarts the stream"
    if at_open:  # the weights differ from the newest version: opening publishes them
        with pytest.warns(dw.PublishWarning, match=restarts):
            publisher = deltawire.torch.Publisher(weights, url=url)
        report = publisher.native.opening
    else:
        publisher = deltawire.torch.Publisher(weights, url=url, publish_changed=False)
        assert publisher.native.opening is None
        publisher.publish()
        report = publisher.wait()
    assert (report.version, report.restarted, report.suspect_from) == (4, True, 3)
    if not at_open:
        with pytest.warns(dw.PublishWarning, match=restarts):
            publisher.publish()
    else:
        publisher.publish()
    report = publisher.wait()
    assert (report.version, report.restarted, report.suspect_from) == (5, False, None)
    publisher.close()


def test_close_raises_if_the_last_version_failed(tmp_path, url, model):
    optimizer = optimizer_of(model)
    publisher = deltawire.torch.Publisher(model, optimizer, url=url)
    with BrokenObjects(tmp_path):
        step(model, optimizer)
        wait_idle(publisher)
        with pytest.warns(dw.PublishWarning):
            publisher._before_step()
    with pytest.raises(dw.Error, match="objects"):
        publisher.close()


def test_who_waits_is_told_and_not_warned(tmp_path, url, model):
    optimizer = optimizer_of(model)
    publisher = deltawire.torch.Publisher(model, optimizer, url=url)
    with BrokenObjects(tmp_path):
        step(model, optimizer)
        with pytest.raises(dw.Error):
            publisher.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer)
        publisher.close()


def test_folding_is_no_failure(url, model):
    optimizer = optimizer_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deltawire.torch.Publisher(model, optimizer, url=url, when_busy="fold"):
            for _ in range(20):
                step(model, optimizer)
    assert followed(url, model)


def test_an_outage_does_not_hold_training(monkeypatch, caplog, model):
    """The store hangs, then refuses: steps are merged, with one warning and one line at the end."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    optimizer = optimizer_of(model)
    with HangingS3() as server, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        store = dw.Store("s3://bucket/run", endpoint=server.endpoint)
        publisher = deltawire.torch.Publisher(model, optimizer, url=store, exit_timeout=0,
                                              max_wait=0.05)
        server.hangs.set()
        step(model, optimizer)
        assert server.reached.wait(300)
        for _ in range(3):  # the server answers nothing: without a limit this would never end
            step(model, optimizer)
        assert publisher.version == 0 and not publisher.native.idle(0)
        server.hangs.clear()
        server.ended.set()
        wait_idle(publisher)
        with caplog.at_level(logging.WARNING, "deltawire"):
            step(model, optimizer)
            report = publisher.wait()
            publisher._outcomes.check()
        assert (report.version, report.n_merged) == (1, 4)
        assert report.waited_ms >= 150
        assert len([w for w in seen if w.category is dw.PublishWarning]) == 1
        assert [r.getMessage() for r in caplog.records if "publishing again" in r.getMessage()]
        metrics = publisher.metrics
        assert (metrics["outages"], metrics["merged_steps"]) == (1, 4)
        assert metrics["waited_seconds"] >= 0.15
        publisher.close()


def test_a_last_step_that_was_merged_is_not_lost_in_silence(monkeypatch, model):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    optimizer = optimizer_of(model)
    with HangingS3() as server:
        store = dw.Store("s3://bucket/run", endpoint=server.endpoint)
        publisher = deltawire.torch.Publisher(model, optimizer, url=store, max_wait=0.05)
        server.hangs.set()
        step(model, optimizer)
        assert server.reached.wait(300)
        with pytest.warns(dw.PublishWarning, match="longer than training may wait"):
            step(model, optimizer)
        with pytest.raises(dw.Unavailable, match="merged into the next version"):
            publisher.wait()
        server.hangs.clear()
        server.ended.set()
        with pytest.raises(dw.Denied):
            publisher.wait(publisher.native.ticket)
        with pytest.raises(dw.Unavailable, match="publish\\(\\) once more"):
            publisher.close()
        publisher.close()


def test_a_cancelled_last_version_is_not_lost_in_silence(monkeypatch, model):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    optimizer = optimizer_of(model)
    with HangingS3() as server:
        store = dw.Store("s3://bucket/run", endpoint=server.endpoint)
        publisher = deltawire.torch.Publisher(model, optimizer, url=store)
        server.hangs.set()
        step(model, optimizer)
        assert server.reached.wait(300)
        publisher.native.cancel()
        server.code = 200
        server.hangs.clear()
        server.ended.set()
        wait_idle(publisher)
        publisher._before_step()
        with pytest.raises(dw.Cancelled):
            publisher.close()


def test_versions_without_changes_are_reported_once(url, model):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with deltawire.torch.Publisher(model, url=url) as publisher:
            for _ in range(45):
                publisher.publish()
                wait_idle(publisher)
    seen = [w for w in seen if w.category is dw.PublishWarning]
    assert len(seen) == 1 and "changed nothing" in str(seen[0].message)


def test_denied_from_the_start_raises(monkeypatch, model):
    """A person must allow it. Later, an outage is no reason to stop training."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    optimizer = optimizer_of(model)
    with HangingS3() as server:
        store = dw.Store("s3://bucket/run", endpoint=server.endpoint)
        deltawire.torch.Publisher(model, url=store).close()
        publisher = deltawire.torch.Publisher(model, optimizer, url=store)
        server.ended.set()
        server.hangs.set()
        step(model, optimizer)
        wait_idle(publisher)
        with pytest.raises(dw.Denied):
            step(model, optimizer)
        server.hangs.clear()
        publisher.close()


def test_the_end_of_the_program_does_not_hide_it(tmp_path, url):
    script = textwrap.dedent("""
        import sys, numpy as np, pathlib, deltawire as dw
        weights = {"w": np.zeros(1000)}
        publisher = dw.Publisher(sys.argv[1], weights)
        objects = pathlib.Path(sys.argv[2], "stream", "objects")
        objects.rename(objects.with_name("away"))
        objects.touch()
        weights["w"] += 1
        publisher.publish()
    """)
    done = subprocess.run([sys.executable, "-c", script, url, tmp_path], capture_output=True,
                          text=True, timeout=300, env=os.environ)
    assert done.returncode == 0
    assert "PublishWarning: the last version was not published" in done.stderr
    assert "objects" in done.stderr


def test_a_fenced_publisher_publishes_nothing(url):
    weights = {"w": np.zeros(1000)}
    first = dw.Publisher(url, weights)
    second = dw.Publisher(url, weights)
    weights["w"] += 1
    with pytest.raises(dw.Conflict):
        first.wait(first.publish())
    with pytest.raises(dw.Conflict, match="open the stream again"):
        first.publish()
    second.close()
    first.close()


def warnings_of(act):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in seen if w.category is dw.PublishWarning]


def test_an_optimizer_of_another_model_is_reported(url, model):
    def open_with(parameters):
        deltawire.torch.Publisher(model, torch.optim.SGD(parameters, lr=1), url=url).close()

    seen = warnings_of(lambda: open_with(torch.nn.Linear(64, 64).parameters()))
    assert len(seen) == 1 and "another model" in seen[0]
    assert warnings_of(lambda: open_with([model.bias])) == []


def test_weights_that_are_not_finite_are_reported_once(url, model):
    def run():
        with deltawire.torch.Publisher(model, url=url) as publisher:
            for value in 1.0, float("nan"), float("inf"):
                with torch.no_grad():
                    model.weight[0] = value
                publisher.publish()
                counts.append(publisher.wait().n_not_finite)
            publisher.publish()

    counts = []
    seen = warnings_of(run)
    assert counts == [0, 64, 64]
    assert len(seen) == 1 and "64 new weights that are infinite" in seen[0]


HOLD = """
import sys, torch, deltawire.torch
publisher = deltawire.torch.Publisher({"w": torch.zeros(9)}, url=sys.argv[1], job="one")
print("open", flush=True)
for line in sys.stdin:
    publisher.publish()
    publisher.wait()
    print("done", flush=True)
"""


@pytest.mark.parametrize("options", [{"take_over": True}, {"job": "one"}])
def test_a_trainer_that_lives_is_taken_over_on_request(url, caplog, options):
    child = subprocess.Popen([sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\n"
    with caplog.at_level(logging.WARNING, "deltawire"):
        deltawire.torch.Publisher({"w": torch.zeros(9)}, url=url, **options).close()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and f"process {child.pid} on host" in said[0] and "job one" in said[0]
    child.kill()
    child.wait(300)


def test_a_trainer_that_goes_on_is_left_alone(url):
    """The second one waits, and is refused; the first one is not disturbed."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\n"

    def let_it_publish(*_):
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "done\n"

    with pytest.raises(dw.Conflict, match=f"process {child.pid} .*goes on.*take_over"):
        deltawire.torch.Publisher({"w": torch.zeros(9)}, url=url, progress=let_it_publish)
    let_it_publish()
    child.stdin.close()
    assert child.wait(300) == 0
