"""Trainers that restart from an older checkpoint: followers get the trainer's weights."""
import types

import numpy as np
import pytest

import deltawire as dw


def steps_of(url):
    return [v.step for v in dw.Stream(url).versions()]


def follow(url, tensors):
    """The weights of a follower that joins now."""
    into = {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
    with dw.Follower(url, tensors=into) as follower:
        follower.sync()
    return into


def test_opening_publishes_weights_that_differ_from_the_head(url):
    weights = {"w": np.arange(1000, dtype="f4"), "b": np.ones(3, "f4")}
    old = {name: tensor.copy() for name, tensor in weights.items()}
    with dw.Publisher(url, weights, step=10) as publisher:
        assert publisher.created and publisher.is_current()
        weights["w"] += 1
        assert not publisher.is_current()
        publisher.wait(publisher.publish(step=20))
        assert publisher.is_current()
    with dw.Publisher(url, old, step=10, notes="from checkpoint-10") as publisher:
        assert not publisher.created
        assert publisher.version == 2 and publisher.is_current()
        np.testing.assert_equal(follow(url, old), old)
    assert steps_of(url) == ["10", "20", "10"]
    assert dw.Stream(url).version(2).notes == "from checkpoint-10"
    with dw.Publisher(url, old) as publisher:
        assert publisher.version == 2  # nothing differs: no version


def test_wait_before_the_first_publish(url):
    weights = {"w": np.zeros(10, "f4")}
    with dw.Publisher(url, weights) as publisher:
        with pytest.raises(dw.Invalid, match="nothing was published .* publish\\(\\) first"):
            publisher.wait()
        weights["w"] += 1
        publisher.publish()
        assert publisher.wait().version == 1
    weights["w"] += 1
    with dw.Publisher(url, weights) as publisher:
        assert publisher.wait() == publisher.opening
        assert publisher.wait().version == 2
    with pytest.raises(dw.Invalid, match="closed"):
        publisher.wait()


def test_masters_are_compared_as_they_are_published(url):
    masters = {"w": np.linspace(-1, 1, 5000, dtype="f4"), "b": np.ones(3, "f4")}
    with dw.Publisher(url, masters, as_bf16=["w"]) as publisher:
        masters["w"] += np.float32(1e-9)  # rounds to the same
        assert publisher.is_current()
        masters["w"][4321] = 7
        assert not publisher.is_current()
    with dw.Publisher(url, masters, as_bf16=["w"]) as publisher:
        assert publisher.version == 1


def test_opening_can_leave_the_head_alone(url):
    weights = {"w": np.zeros(10, "f4")}
    dw.Publisher(url, weights).close()
    weights["w"] += 1
    with dw.Publisher(url, weights, publish_changed=False) as publisher:
        assert publisher.version == 0 and not publisher.is_current()


def test_an_opening_that_cannot_publish_raises(url, tmp_path):
    weights = {"w": np.zeros(1000, "f4")}
    dw.Publisher(url, weights).close()

    def stop(done, total):
        raise KeyboardInterrupt

    weights["w"] += 1
    with pytest.raises(KeyboardInterrupt):
        dw.Publisher(url, weights, progress=stop)


# ---- PyTorch --------------------------------------------------------------------------

TRAIN = """
import os, signal, sys
import torch
import deltawire.torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

def save(model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{step}.tmp")
    os.rename(f"{step}.tmp", f"{step}.pt")

url, start, end, killed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kill"
model, optimizer = make()
if start:
    found = torch.load(f"{start}.pt")
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
with deltawire.torch.Publisher(model, optimizer, url=url, start_step=start) as publisher:
    assert publisher.native.is_current()
    for step in range(start + 1, end + 1):
        torch.manual_seed(1000 * start + step)  # another course after a restart
        x = torch.randn(32, 16)
        torch.nn.functional.mse_loss(model(x), torch.randn(32, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            save(model, optimizer, step)
        if killed:
            publisher.wait()
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), "end.pt")
"""


def test_a_training_loop_is_killed_and_resumes_from_an_older_checkpoint(url, python, tmp_path):
    torch = pytest.importorskip("torch")
    import deltawire.torch

    def raw(tensors):
        return {name: tensor.view(torch.int16).tolist() for name, tensor in tensors.items()}

    def served():
        into = {name: torch.zeros(shape, dtype=torch.bfloat16)
                for name, (_, shape) in dw.Stream(url).tensors.items()}
        with deltawire.torch.Follower(into, url) as follower:
            follower.sync()
        return raw(into)

    def saved(path):
        found = torch.load(tmp_path / path)
        return raw({name: tensor.to(torch.bfloat16)
                    for name, tensor in found.get("model", found).items()})

    python(TRAIN, url, 0, 23, "kill", status=-9)
    assert steps_of(url) == [str(step) for step in range(24)]
    assert served() not in (saved("10.pt"), saved("20.pt"))

    # only started: engines have the weights that training goes on from, not discarded ones
    python(TRAIN, url, 10, 10, "no")
    assert served() == saved("10.pt") == saved("end.pt")

    python(TRAIN, url, 10, 14, "no")
    assert served() == saved("end.pt") != saved("10.pt")
    assert steps_of(url)[24:] == ["10", "11", "12", "13", "14"]


def test_steps_count_from_the_start_step(url):
    torch = pytest.importorskip("torch")
    import deltawire.torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with deltawire.torch.Publisher(model, optimizer, url=url, publish_every=4,
                                   start_step=30) as publisher:
        for _ in range(7):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert publisher.steps == 37
    assert steps_of(url) == ["30", "32", "36"]
    with pytest.raises(TypeError, match="integer"):
        deltawire.torch.Publisher(model, url=url, start_step="30")


def test_a_callback_takes_the_step_of_its_trainer(url):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from deltawire._publish_callback import PublishCallback

    model = torch.nn.Linear(4, 4)
    arguments = types.SimpleNamespace(load_best_model_at_end=False)

    def train(start, end):
        state = types.SimpleNamespace(is_world_process_zero=True, global_step=start)
        callback = PublishCallback(url)
        callback.on_train_begin(arguments, state, None, model=model)
        for _ in range(start, end):
            callback.on_pre_optimizer_step(arguments, state, None)
            with torch.no_grad():
                model.weight += 1
            state.global_step += 1
            callback.on_step_end(arguments, state, None)
        callback.on_train_end(arguments, state, None)

    train(0, 3)
    with torch.no_grad():
        model.weight -= 1  # as after step 2
    train(2, 4)
    assert steps_of(url) == ["0", "1", "2", "3", "2", "3", "4"]
    train(4, 4)
    assert dw.Stream(url).head == 6


def test_a_transfer_publishes_what_a_resumed_trainer_sends_first(url):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from deltawire.trl import WeightTransfer

    weights = {"w": torch.zeros(64), "b": torch.ones(4)}

    def sync(transfer):
        transfer.send_weights(iter(weights.items()))
        transfer.resume()
        return transfer.version

    transfer = WeightTransfer(url)
    assert sync(transfer) == 0
    weights["w"] += 1
    assert sync(transfer) == 1
    transfer.destroy()
    weights["w"] -= 1
    transfer = WeightTransfer(url)
    transfer.model_version = 6
    assert sync(transfer) == 2  # one version, not two
    transfer.destroy()
    transfer = WeightTransfer(url)
    assert sync(transfer) == 2  # the stream has these weights
    transfer.destroy()
    assert steps_of(url) == ["1", "2", "7"]
