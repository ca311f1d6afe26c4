"""Against PyTorch: the same bits, in place; hooks. test_transformers.py trains for real."""
import contextlib
import copy
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import safetensors.torch  # noqa: E402

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64,
          torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64]


def raw(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_all_types_both_ways(tmp_path):
    model = {str(t): torch.randint(0, 2, (3, 5)).to(t) for t in DTYPES}
    model["scalar"] = torch.tensor(1.5, dtype=torch.bfloat16)
    model["empty"] = torch.empty(0, 3)
    path = tmp_path / "m.safetensors"
    dw.write_checkpoint(path, model)
    theirs = safetensors.torch.load_file(path)
    with dw.Checkpoint(path) as ours:
        assert set(ours) == set(theirs) == set(model)
        for name, tensor in model.items():
            view = torch.from_dlpack(ours[name])
            assert view.dtype == tensor.dtype and view.shape == tensor.shape
            assert raw(view) == raw(theirs[name]) == raw(tensor)


def test_no_copy_is_made(tmp_path):
    dw.write_checkpoint(tmp_path / "m", {"x": torch.zeros(1000, dtype=torch.bfloat16)})
    with dw.Checkpoint(tmp_path / "m", writable=True) as found:
        torch.from_dlpack(found["x"])[7] = 3
        found.sync()
    with dw.Checkpoint(tmp_path / "m") as found:
        view = torch.from_dlpack(found["x"])
        assert view[7] == 3
        assert view.data_ptr() == np.asarray(found["x"]).ctypes.data
    assert view[7] == 3  # it keeps the mapping


def test_casts_are_torchs_to_the_bit():
    bits = torch.arange(-2**31, 2**31, 997, dtype=torch.int64).to(torch.int32)
    source = bits.view(torch.float32)
    source = source[~source.isnan()]
    into = torch.zeros_like(source, dtype=torch.bfloat16)
    dw.cast({"x": source}, {"x": into})
    assert torch.equal(into.view(torch.int16), source.to(torch.bfloat16).view(torch.int16))


def test_what_torch_refuses():
    x = torch.zeros(4, 4)
    with pytest.raises(dw.Invalid):
        dw.digest({"x": x.t()[1:]})
    with pytest.raises(Exception, match="(?i)conj|neg|meta|device|storage"):
        dw.digest({"x": torch.empty(4, device="meta")})


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.frozen = torch.nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(16)
        self.body = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.body(self.norm(self.frozen(self.embed(x)))))


def as_bf16(model):
    return {name: tensor.detach().to(torch.bfloat16) if tensor.dtype == torch.float32
            else tensor.detach() for name, tensor in deltawire.torch.named_tensors(model).items()}


def groups(model):
    return torch.optim.AdamW([{"params": [model.embed.weight], "lr": 1e-3},
                              {"params": model.body.parameters(), "lr": 3e-3}])


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    for _ in range(2):  # gradients are accumulated
        x = torch.randint(0, 50, (8,))
        torch.nn.functional.cross_entropy(model(x), x).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_steps_publish(url):
    model = torch.nn.ModuleDict({"module": Tied()})["module"]
    optimizer = groups(model)
    with deltawire.torch.Publisher(model, optimizer, url=url, publish_every=2) as publisher:
        assert "head.weight" not in dw.Stream(url).tensors
        assert dw.Stream(url).tensors["embed.weight"] == ("BF16", (50, 16))
        for i in range(6):
            step(model, optimizer, i)
            if i % 2:
                report = publisher.wait()
                assert report.state == dw.digest(as_bf16(model)).state
        assert publisher.version == 3 and publisher.steps == 6
        with torch.no_grad():  # a frozen one that is changed nevertheless
            model.frozen.weight[0, 0] = 5
        assert publisher.wait(publisher.publish(notes="by hand")).n_changed == 1
    assert [v.step for v in dw.Stream(url).versions()] == ["", "2", "4", "6", ""]
    step(model, optimizer, 9)  # the hooks are gone


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_frozen_is_not_read_again(url, dtype):
    model = Tied().to(dtype)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.wait(publisher.publish())
        model.frozen.weight.data += 1  # does not change the tensor's version
        assert publisher.wait(publisher.publish()).n_changed == 0
        with torch.no_grad():
            model.frozen.weight.add_(0)  # this does
        assert publisher.wait(publisher.publish()).n_changed == 16 * 16


def rows_of(whole):
    return torch.nn.Parameter(whole.data[:5])


@pytest.mark.parametrize("other", [lambda whole: torch.nn.Parameter(whole.data), rows_of])
@pytest.mark.parametrize("is_module", [True, False])
def test_frozen_weights_that_change_through_another_parameter(url, other, is_module):
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.zeros(16, 16, dtype=torch.bfloat16), requires_grad=False)
    model.b = other(model.a)  # the same memory, but a version of its own
    given = model if is_module else dict(model.named_parameters())
    with deltawire.torch.Publisher(given, url=url) as publisher:
        publisher.wait(publisher.publish())
        with torch.no_grad():
            model.b.add_(1)
        publisher.wait(publisher.publish())
    found = {name: torch.zeros(shape, dtype=torch.bfloat16)
             for name, (_, shape) in dw.Stream(url).tensors.items()}
    with dw.Follower(url, tensors=found) as follower:
        follower.sync()
    assert torch.equal(found["a"], model.a)


def test_what_leaves_no_trace_is_published(url, monkeypatch):
    def write(parameter):
        version = parameter._version
        parameter.numpy(force=True)[:] += 1
        assert parameter._version == version

    model = Tied()
    with deltawire.torch.Publisher(model, url=url, frozen="never") as publisher:
        publisher.wait(publisher.publish())
        write(model.frozen.weight)
        assert publisher.wait(publisher.publish()).n_changed == 16 * 16
    # an optimizer's parameters are always read, because a fused step changes no version
    optimizer = torch.optim.SGD(model.frozen.parameters())
    with deltawire.torch.Publisher(model, optimizer, url=url) as publisher:
        publisher.wait(publisher.publish())
        write(model.frozen.weight)
        assert publisher.wait(publisher.publish()).n_changed == 16 * 16
    # now and then everything is read
    monkeypatch.setattr(deltawire._weights, "READ_ALL_EVERY", 4)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.wait(publisher.publish())
        write(model.frozen.weight)
        changed = [publisher.wait(publisher.publish()).n_changed for _ in range(3)]
        assert changed == [0, 0, 16 * 16]
    with pytest.raises(ValueError, match="detect"):
        deltawire.torch.Publisher(model, url=url, frozen=True)


def test_tensors_of_inference_mode_are_read_at_each_publish(url):
    """They have no `_version` to tell that nobody wrote them."""
    with torch.inference_mode():
        model = torch.nn.Linear(4, 4).requires_grad_(False)
        with deltawire.torch.Publisher(model, url=url, dtype=None) as publisher:
            model.weight.add_(1)
            publisher.wait(publisher.publish())
    served = torch.nn.Linear(4, 4)
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()
    assert torch.equal(served.weight, model.weight)


def test_frozen_and_not_in_the_stream(url, tmp_path):
    """A change of a frozen tensor is published by the next version that succeeds."""
    model = Tied()
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.wait(publisher.publish())
        with torch.no_grad():
            model.frozen.weight.add_(1)
        commits = tmp_path / "stream" / "commits"
        hidden = commits.rename(tmp_path / "hidden")
        commits.write_text("no directory")
        with pytest.raises(dw.Error):
            publisher.wait(publisher.publish())
        commits.unlink()
        hidden.rename(commits)
        assert publisher.wait(publisher.publish()).n_changed == 16 * 16


def test_masters_are_read_in_place():
    weights = deltawire.torch.Weights(
        deltawire.torch.named_tensors(Tied()), torch.bfloat16, True)
    assert set(weights.copies) == {"norm.running_mean", "norm.running_var",
                                   "norm.num_batches_tracked"}
    assert weights.as_bf16 == weights.live.keys() - weights.copies.keys()


def test_a_tensor_that_moved_is_noticed(url):
    model = Tied()
    with deltawire.torch.Publisher(model, url=url) as publisher:
        model.body.weight.data = model.body.weight.data.clone()
        with pytest.raises(RuntimeError, match="body.weight"):
            publisher.publish()


def test_a_tensor_that_was_turned_is_noticed(url):
    model = torch.nn.Linear(8, 8)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.publish()
        model.weight.data = model.weight.data.t()  # the same memory
        with pytest.raises(RuntimeError, match="weight"):
            publisher.publish()


def test_a_parameter_that_was_replaced_is_noticed(url):
    for replace, name in [
        (lambda m: m.load_state_dict(
            {n: t + 1 for n, t in m.state_dict().items()}, assign=True), "embed.weight"),
        (lambda m: setattr(m.body, "bias", torch.nn.Parameter(m.body.bias + 1)), "body.bias"),
        (lambda m: setattr(m.head, "weight", torch.nn.Parameter(m.embed.weight + 1)),
         "head.weight"),  # not tied any more
        (lambda m: setattr(m.body, "bias", None), "body.bias"),
        (lambda m: setattr(m, "body", copy.deepcopy(m.body)), "body.weight"),
        (lambda m: setattr(m.body, "_parameters", dict(copy.deepcopy(m.body)._parameters)),
         "body.weight"),
    ]:
        model = Tied()
        with deltawire.torch.Publisher(model, url=url) as publisher:
            replace(model)
            with pytest.raises(RuntimeError, match=name):
                publisher.publish()


def test_parameters_that_share_memory_no_longer_are_noticed(url):
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(2)])
    model[1].weight.data = model[0].weight.data
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.publish()
        model[1].weight.data = model[0].weight.data.clone()
        with pytest.raises(RuntimeError, match="1.weight"):
            publisher.publish()


def test_tensors_that_a_hook_makes_are_followed(url):
    model = torch.nn.Linear(8, 8, bias=False)
    model.register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update(
            {prefix + "merged": module.weight.detach() * 2}))
    with deltawire.torch.Publisher(model, url=url, dtype=None) as publisher:
        for _ in range(2):
            with torch.no_grad():
                model.weight.add_(1)
            report = publisher.wait(publisher.publish())
            assert report.state == dw.digest(
                {name: tensor.detach() for name, tensor in model.state_dict().items()}).state


def test_a_buffer_that_was_replaced_is_followed(url):
    model = Tied()
    with deltawire.torch.Publisher(model, url=url) as publisher:
        for _ in range(2):
            model.norm.running_mean = model.norm.running_mean + 1
            report = publisher.wait(publisher.publish())
            assert report.state == dw.digest(as_bf16(model)).state and report.n_changed == 16
        model.norm.running_mean = torch.zeros(8)
        with pytest.raises(RuntimeError, match="norm.running_mean"):
            publisher.publish()


def rush(model, inputs, after_each):
    """Steps as fast as possible: nobody waits for a version."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with after_each(optimizer) as step_is_over:
        for x in inputs:
            model["small"](x)  # its buffers change
            optimizer.step()
            step_is_over()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_does_not_reach_into_a_publish(url, dtype):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"small": Tied(), "large": torch.nn.Linear(3000, 1000)}).to(dtype)
    again, inputs, states = copy.deepcopy(model), torch.randint(0, 50, (6, 8)), []

    @contextlib.contextmanager
    def published(optimizer):
        with deltawire.torch.Publisher(model, optimizer, url=url, threads=1):
            yield lambda: None

    @contextlib.contextmanager
    def replayed(_):
        yield lambda: states.append(dw.digest(as_bf16(again)).state)

    rush(model, inputs, published)
    rush(again, inputs, replayed)
    assert [v.state for v in dw.Stream(url).versions(1)] == states


def test_names(url):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Tied()

    wrapped = Wrapped()
    plain = deltawire.torch.named_tensors(wrapped, prefix="module.")
    assert set(plain) == set(deltawire.torch.named_tensors(Tied()))
    some = deltawire.torch.named_tensors(
        wrapped, prefix="module.", names=lambda n: "m." + n if "weight" in n else None)
    assert set(some) == {"m.embed.weight", "m.frozen.weight", "m.norm.weight", "m.body.weight"}
    assert "e" in deltawire.torch.named_tensors(wrapped, names={"module.embed.weight": "e"})
    with pytest.raises(ValueError):
        deltawire.torch.named_tensors(wrapped, names=lambda n: "same")


def test_what_other_frameworks_cut_up_is_refused(url, python, tmp_path):
    model = Tied()
    model.body.weight.ds_id = 0  # as DeepSpeed marks it
    with pytest.raises(ValueError, match="'body.weight' .*ZeRO-3"):
        deltawire.torch.Publisher(model, url=url)
    python("""
    import sys, torch, torch.distributed as dist, deltawire.torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
    for original in (False, True):
        inner = torch.nn.Linear(4, 4)
        outer = FSDP(inner, device_id=torch.device("cpu"), use_orig_params=original)
        for model in (inner, outer):
            try:
                deltawire.torch.Publisher(model, url=sys.argv[1])
                raise SystemExit("not refused")
            except ValueError as error:
                assert "FSDP1" in str(error), error
    dist.destroy_process_group()
    """, url, tmp_path / "meeting")


def test_layouts_that_need_a_copy(url):
    conv = torch.nn.Conv2d(3, 4, 3).to(torch.bfloat16).to(memory_format=torch.channels_last)
    assert not conv.weight.is_contiguous()
    with deltawire.torch.Publisher(conv, url=url) as publisher:
        with torch.no_grad():
            conv.weight.add_(1)
        report = publisher.wait(publisher.publish())
    assert report.state == dw.digest({"weight": conv.weight.detach().contiguous(),
                                      "bias": conv.bias.detach()}).state


def test_a_live_model_follows_in_a_thread(url):
    model, served = Tied(), Tied().to(torch.bfloat16)
    optimizer, calls, resumed = groups(model), [], threading.Event()

    def resume():
        calls.append("resume")
        resumed.set()

    where = served.embed.weight.data_ptr()
    with deltawire.torch.Publisher(model, optimizer, url=url) as publisher:
        with deltawire.torch.Follower(served, url, pause=lambda: calls.append("pause"),
                                      resume=resume) as follower:
            follower.sync()
            follower.start(max_wait=0.05)
            for i in range(5):
                step(model, optimizer, i)
            goal = publisher.wait().version
            while follower.version != goal and follower.error is None:
                resumed.wait(0.1)  # it is finished a little later than resumed
            assert follower.error is None
        assert dw.digest(as_bf16(served)).state == dw.digest(as_bf16(model)).state
    assert served.embed.weight.data_ptr() == where == served.head.weight.data_ptr()
    assert calls[::2] == ["pause"] * (len(calls) // 2) and calls[1::2] == ["resume"] * (
        len(calls) // 2)


@pytest.mark.parametrize("empty", [False, True])
def test_a_live_model_stands_still_before_the_first_store(url, tmp_path, empty):
    """With an altered object no weight changes; an empty model stays paused then."""
    key = dw.keygen(tmp_path / "key")
    model, served = Tied(), Tied().to(torch.bfloat16)
    before, calls = dw.digest(as_bf16(served)).state, []

    def pause():
        assert dw.digest(as_bf16(served)).state == before
        calls.append("pause")

    deltawire.torch.Publisher(model, url=url, sign_key=tmp_path / "key").close()
    with dw.Store(url) as store:
        name = next(e.key for e in store.list("objects/"))
        good = store.get(name)
        store.put(name, good[:-64] + b"B" * 64)
        with deltawire.torch.Follower(served, url, pause=pause, empty=empty, trust=[key],
                                      resume=lambda: calls.append("resume")) as follower:
            with pytest.raises(dw.Corrupt):
                follower.sync()
            assert follower.version is None
            assert calls == (["pause"] if empty else [])
            assert empty or dw.digest(as_bf16(served)).state == before
            store.put(name, good)
            assert follower.sync() == 0 and calls == ["pause", "resume"]
    assert dw.digest(as_bf16(served)).state == dw.digest(as_bf16(model)).state


def test_what_a_callback_raises_comes_out(url):
    model, served = Tied(), Tied().to(torch.bfloat16)

    def pause():
        raise RuntimeError("not now")

    with deltawire.torch.Publisher(model, url=url):
        follower = deltawire.torch.Follower(served, url, pause=pause).start(0.05)
        follower._thread.join(60)
        with pytest.raises(RuntimeError, match="not now"):
            follower.close()


class FailsOnce:
    """A follower whose stores fail the first time."""

    def __init__(self, native):
        self.native, self.failed = native, False

    def __getattr__(self, name):
        return getattr(self.native, name)

    def apply(self):
        if not self.failed:
            self.failed = True
            raise OSError("the stores failed")
        self.native.apply()


def test_a_sync_that_failed_is_finished_by_the_next(url):
    model, served, seen = Tied(), Tied().to(torch.bfloat16), []

    def resume():
        seen.append((follower.version, dw.digest(as_bf16(served)).state))
        if len(seen) == 2:
            raise RuntimeError("not now")

    with (deltawire.torch.Publisher(model, url=url) as publisher,
          deltawire.torch.Follower(served, url, resume=resume) as follower):
        follower.sync()
        states = [seen[0][1]]
        for _ in range(3):
            with torch.no_grad():
                model.body.weight.add_(1)
            states.append(publisher.wait(publisher.publish()).state)
            if len(states) == 2:
                with pytest.raises(RuntimeError, match="not now"):
                    follower.sync()
                assert follower.version == 1 and follower.native.staged is None
            elif len(states) == 3:
                assert follower.sync() == 2
            else:
                follower._native = FailsOnce(follower._native)
                with pytest.raises(OSError, match="the stores failed"):
                    follower.sync()
                assert len(seen) == 3 and follower.version == 2  # it is not resumed
                assert follower.sync() == 3
    assert seen == list(enumerate(states))


def test_a_float32_model_follows_a_bfloat16_stream_on_request(url):
    source = torch.nn.Linear(16, 8).bfloat16()
    with deltawire.torch.Publisher(source, url=url) as publisher:
        publisher.publish()
        publisher.wait()
        target = torch.nn.Linear(16, 8)
        with pytest.raises(deltawire.Mismatch, match="widen=True"):
            deltawire.torch.Follower(target, url)
        with pytest.raises(deltawire.Mismatch, match="your model as F16"):
            deltawire.torch.Follower(torch.nn.Linear(16, 8).half(), url, widen=True)
        with deltawire.torch.Follower(target, url, widen=True) as follower:
            follower.sync()
            assert torch.equal(target.weight, source.weight.float())
            with torch.no_grad():
                source.weight[3, 4] += 1
                source.bias[2] = -0.5
            publisher.publish()
            publisher.wait()
            follower.sync()
            assert torch.equal(target.weight, source.weight.float())
            assert torch.equal(target.bias, source.bias.float())
            assert target.weight.dtype == torch.float32


def test_swapped_arguments_say_so(url):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="the model comes first, then the stream"):
        deltawire.torch.Follower(url, model)
    with pytest.raises(TypeError, match="the model comes first, then the stream"):
        deltawire.torch.Publisher(url, url=url)
