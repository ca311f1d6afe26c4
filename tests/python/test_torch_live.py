"""deltawire.torch.Follower and what users do to a live model: hooks, new parameters, moved memory.
The model's own weights are compared, not what the handle says."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402


def linear(seed, dtype=torch.bfloat16):
    """Its weights are the same in float16, bfloat16 and float32."""
    model = torch.nn.Linear(8, 8, dtype=dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-8, 8, parameter.shape) / 8)
    return model


def change(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.rand(parameter.shape) < 0.2) / 8)


def same(a, b):
    return all(torch.equal(x.detach().float(), y.detach().float())
               for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.fixture
def trainer(url):
    model = linear(1)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        def publish():
            change(model, publisher.version + 100)
            return publisher.wait(publisher.publish()).version
        model.publish = publish
        yield model


# ---- state dicts that hand out copies ----


def clone_in_hook(model):
    model.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(
        {name: tensor.clone() for name, tensor in state.items()}))


def clone_in_override(model):
    inner = model.state_dict
    model.state_dict = lambda *args, **given: {
        name: tensor.clone() for name, tensor in inner(*args, **given).items()}


def keep_copies(model):
    """As a model does that serves an average of its weights."""
    model.kept = model.weight.detach().clone()
    model.register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({prefix + "weight": model.kept}))


def split(model, copy):
    """A fused weight under other names."""
    def hook(module, state, prefix, _):
        weight = state.pop(prefix + "weight")
        for i, part in enumerate(weight.chunk(2)):
            state[f"{prefix}weight_{i}"] = part.clone() if copy else part
    model.register_state_dict_post_hook(hook)


@pytest.mark.parametrize("spoil", [clone_in_hook, clone_in_override, keep_copies])
def test_copies_of_a_state_dict_are_refused(trainer, url, spoil):
    served = linear(2)
    spoil(served)
    with pytest.raises(ValueError, match="'weight' of state_dict.. is a copy"):
        deltawire.torch.Follower(served, url)
    with deltawire.torch.Follower(dict(served.named_parameters()), url) as follower:
        trainer.publish()  # as the message says
        follower.sync()
    assert same(served, trainer)


@pytest.mark.parametrize("copy", [False, True])
def test_a_fused_weight_that_a_hook_splits(url, copy):
    model, served = linear(1), linear(2)
    split(model, False)
    split(served, copy)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        if copy:
            with pytest.raises(ValueError, match="'weight_0' of state_dict.. is a copy"):
                deltawire.torch.Follower(served, url)
            return
        with deltawire.torch.Follower(served, url) as follower:
            for i in range(3):
                follower.sync()
                assert same(served, model)
                change(model, i)
                publisher.wait(publisher.publish())


def test_what_is_the_models_own_memory(url):
    """Aliases and a buffer. A plain attribute may be memory that nothing is computed with."""
    class Model(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4, 4), value))
            self.register_buffer("scale", torch.full((4,), value))

        def state_dict(self, **_):
            return {"w": self.weight.detach(), "s": self.scale.view(2, 2)}

    model, served = Model(1.0), Model(2.0)
    with deltawire.torch.Publisher(model, url=url, dtype=None):
        with deltawire.torch.Follower(served, url) as follower:
            follower.sync()
            assert [t.unique().tolist() for t in (served.weight, served.scale)] == [[1.0]] * 2


# ---- tensors that are replaced ----


def new_parameter(model):
    model.weight = torch.nn.Parameter(model.weight.detach().clone())


def assign(model):
    model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)


def cast(model):
    own = model.weight.dtype
    model.to(torch.float16).to(own)


def data(model):
    model.bias.data = model.bias.data.clone()


def share(model):
    model.share_memory()


MOVES = [new_parameter, assign, cast, data, share]


@pytest.mark.parametrize("widen", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_memory_that_was_replaced_is_taken(trainer, url, move, widen):
    served = linear(2, torch.float32 if widen else torch.bfloat16)
    with deltawire.torch.Follower(served, url, widen=widen) as follower:
        follower.sync()
        for _ in range(2):
            move(served)
            version = trainer.publish()
            assert follower.sync() == version
            assert same(served, trainer)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("when", ["pause", "resume"])
def test_memory_that_a_callback_replaces_is_taken(trainer, url, move, when):
    served = linear(2)
    callbacks = {when: lambda: move(served)}
    with deltawire.torch.Follower(served, url, **callbacks) as follower:
        for _ in range(3):
            version = trainer.publish()
            assert follower.sync() == version
            assert same(served, trainer)


@pytest.mark.parametrize("widen", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_memory_with_other_weights_is_refused(trainer, url, move, widen):
    served = linear(2, torch.float32 if widen else torch.bfloat16)
    calls = []
    with deltawire.torch.Follower(served, url, widen=widen, pause=lambda: calls.append(1),
                                  resume=lambda: calls.append(-1)) as follower:
        follower.sync()
        move(served)
        with torch.no_grad():
            served.bias[3] += 0.25
            served.weight[3, 4] += 0.25
        before = [p.detach().clone() for p in served.parameters()]
        trainer.publish()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="does not hold .*[Mm]ake a new follower"):
                follower.sync()
        assert follower.version == 0 and sum(calls) == 0
        assert all(map(torch.equal, before, served.parameters()))
    with deltawire.torch.Follower(served, url, widen=widen) as follower:
        follower.sync()
        assert same(served, trainer)


@pytest.mark.parametrize("spoil, text", [
    (lambda m: setattr(m, "bias", None), "'bias' was removed"),
    (lambda m: m.register_parameter("extra", torch.nn.Parameter(torch.zeros(3))),
     "'extra' is new"),
    (lambda m: m.half(), "another shape or type"),
    (lambda m: setattr(m, "weight", torch.nn.Parameter(torch.zeros(4, 8).bfloat16())),
     "'weight' has another shape"),
    (clone_in_hook, None),  # known by then
])
def test_another_model_than_at_the_start(trainer, url, spoil, text):
    served = linear(2)
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()
        spoil(served)
        trainer.publish()
        if text is None:
            follower.sync()
            assert same(served, trainer)
            return
        with pytest.raises(RuntimeError, match=text):
            follower.sync()


def test_a_mapping_with_another_tensor(trainer, url):
    served = {name: torch.zeros_like(tensor) for name, tensor in trainer.state_dict().items()}
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()
        served["bias"] = served["bias"].clone()
        trainer.publish()
        follower.sync()
        assert all(torch.equal(served[name], tensor)
                   for name, tensor in trainer.state_dict().items())


def test_memory_of_no_version_may_hold_anything(trainer, url):
    served = linear(2)
    with deltawire.torch.Follower(served, url) as follower:
        assign(served)
        with torch.no_grad():
            served.weight.fill_(3)
        follower.sync()
        assert same(served, trainer)


# ---- memory that is freed ----


def test_share_memory_frees_what_the_follower_had(url, python):
    """A block of 96 MB is unmapped at once: a use of it ends the process."""
    python("""
    import sys, torch, deltawire as dw, deltawire.torch
    url = sys.argv[1]
    model, served = (torch.nn.Linear(12000, 4000, bias=False).bfloat16() for _ in range(2))
    with deltawire.torch.Publisher(model, url=url) as publisher:
        follower = deltawire.torch.Follower(served, url)
        follower.sync()
        tensors = {"weight": torch.zeros_like(model.weight, requires_grad=False)}
        plain = dw.Follower(url, tensors=tensors)
        plain.sync()
        other = dw.Publisher(url + "-2", tensors)
        served.share_memory()
        tensors["weight"].share_memory_()
        with torch.no_grad():
            model.weight[7].add_(1)
        publisher.wait(publisher.publish())
        follower.sync()
        assert torch.equal(served.weight, model.weight)
        for call in (plain.sync, plain.stage, other.publish, other.is_current):
            try:
                call()
                raise SystemExit("not noticed")
            except dw.Conflict as error:
                assert "weight" in str(error) and "moved" in str(error), error
        plain.move(tensors)
        plain.sync()
        assert torch.equal(tensors["weight"], model.weight)
    model.share_memory()
    """, url)


def test_arrays_are_held_until_close(url, tmp_path):
    source = {"x": np.arange(8, dtype=np.float32)}
    dw.Publisher(url, source).close()
    bytes_ = bytearray(32)
    follower = dw.Follower(url, tensors={"x": (bytes_, "F32", (8,))})
    with pytest.raises(BufferError):
        bytes_.extend(b"x")  # would move it
    follower.sync()
    follower.close()
    bytes_.extend(b"x")
    assert bytes_[:32] == source["x"].tobytes()


def test_move_of_plain_memory(url):
    source = {"x": np.arange(8, dtype=np.float32), "y": np.ones(3, dtype=np.float32)}
    with dw.Publisher(url, source) as publisher:
        old = {name: np.zeros_like(array) for name, array in source.items()}
        with dw.Follower(url, tensors=old) as follower:
            follower.sync()
            new = {name: array.copy() for name, array in old.items()}
            source["x"][2] = 7
            publisher.wait(publisher.publish())
            follower.stage()
            follower.move(new)
            assert follower.update_state == "staged" and follower.staged == 1
            for wrong in ({"x": new["x"]}, {**new, "y": np.ones(4, dtype=np.float32)}):
                with pytest.raises(dw.Mismatch):
                    follower.move(wrong)
            with pytest.raises(dw.Stale, match="y.*does not hold version 0"):
                follower.move({**new, "y": np.zeros(3, dtype=np.float32)})
            follower.apply()
            assert follower.update_state == "applied"
            with pytest.raises(dw.Stale, match="version 1"):
                follower.move(old)  # which has version 0
            old["x"][:] = source["x"]
            follower.move(old)
            follower.finish()
            assert follower.update_state is None and follower.version == 1
            source["x"][3] = 9
            publisher.wait(publisher.publish())
            follower.sync()
        assert np.array_equal(old["x"], source["x"]) and new["x"][3] == 3
    with dw.Follower(url, into=url.removeprefix("file://") + "-dir") as follower:
        with pytest.raises(dw.Invalid, match="directory"):
            follower.move(new)


def test_other_weights_are_noticed_if_nothing_is_new(trainer, url):
    served = linear(2)
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()
        served.weight = torch.nn.Parameter(torch.ones_like(served.weight))
        with pytest.raises(RuntimeError, match="'weight' lies in other memory"):
            follower.sync()


@pytest.mark.parametrize("which", [0, 1])
def test_parameters_that_share_memory_no_longer(url, which):
    """Whichever of them moves."""
    model, served = (torch.nn.Sequential(linear(seed), linear(seed)) for seed in (1, 2))
    for pair in (model, served):
        pair[1].bias.data = pair[0].bias.data
    with deltawire.torch.Publisher(model, url=url) as publisher:
        with deltawire.torch.Follower(served, url) as follower:
            follower.sync()
            served[which].bias.data = served[which].bias.data.clone()
            change(model, 3)
            publisher.wait(publisher.publish())
            with pytest.raises(RuntimeError, match="'1.bias' is new, or not tied any more"):
                follower.sync()
