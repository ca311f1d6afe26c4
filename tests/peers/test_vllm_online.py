"""A vLLM that quantises a bf16 checkpoint while it loads it takes patches of the bf16 stream: it
then has the bits of a vLLM that is started on the new version."""
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import deltawire  # noqa: E402
import vllm_server  # noqa: E402
from quantised_by_torch import scaled_fp8_quant  # noqa: E402
from test_vllm_weights import Engine, Run, parameters  # noqa: E402


class FiniteRun(Run):
    def add_odd_values(self, other, moved):
        """NaN has no scale."""


@pytest.fixture
def quantising(monkeypatch):
    from vllm import _custom_ops

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(_custom_ops, "scaled_fp8_quant", scaled_fp8_quant)


@pytest.fixture
def packing(quantising, monkeypatch):
    """vLLM's kernels for AMX, which load and pack on other processors too, but compute nothing."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)


def bits(engine):
    return {name: torch.empty(p.shape, dtype=p.dtype).copy_(p.detach()).view(-1).view(torch.uint8)
            for name, p in parameters(engine).items()}


def different(a, b):
    return [name for name in b if not torch.equal(a[name], b[name])]


# Scheme, model, methods of its layers, and a weight of it. The kernels, of PyTorch, keep the
# weights transposed, as those for GPUs do.
CASES = [
    ("fp8_per_channel", "Qwen3", {"Fp8PtpcOnlineLinearMethod"},
     "model.layers.0.mlp.down_proj.weight"),
    ("fp8", "Qwen3", {"Fp8PerTensorOnlineLinearMethod"},
     "model.layers.1.self_attn.qkv_proj.weight"),
]


@pytest.mark.parametrize("scheme, model, methods, name", CASES, ids=[c[0] for c in CASES])
def test_changes_are_quantised_with_the_engines_scales(tmp_path, quantising, monkeypatch,
                                                       scheme, model, methods, name):
    check_updates(tmp_path, monkeypatch, scheme, model, methods, name)


def test_layers_whose_arithmetic_is_not_known_are_quantised_by_vllm(tmp_path, packing):
    """The kernel for one scale a tensor packs them."""
    run = FiniteRun(tmp_path, "Qwen3")
    engine = Engine(run.paths[0], quantization="fp8")
    weights = engine.backend._weights
    assert weights._online == {}
    assert set(weights.reasons) == {name for name in run.live if name.endswith("_proj.weight")}
    first = bits(engine)
    engine.update(run.snapshot())
    assert different(bits(engine), first) == []
    run.publish(1)
    engine.update(run.stage())
    run.follower.finish()
    now = bits(engine)
    assert different(now, bits(Engine(run.paths[1], quantization="fp8"))) == []
    assert "model.layers.0.mlp.down_proj.weight" in different(now, first)
    run.close()


def test_experts():
    """In a process of their own: vLLM makes the groups of ranks that experts need only for the
    first model of a process."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         Path(__file__).parent / "vllm_experts.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def check_updates(tmp_path, monkeypatch, scheme, model, methods, name):
    run = FiniteRun(tmp_path, model)
    engine = Engine(run.paths[0], quantization=scheme)
    weights = engine.backend._weights
    used = {type(weight.module.quant_method).__name__ for weight in weights._online.values()}
    assert used == methods and name in weights._online
    assert weights.reasons == {}
    assert weights.held == {name: w.numel() for name, w in run.versions[0].items()}
    first = bits(engine)
    engine.update(run.snapshot())
    assert different(bits(engine), first) == []

    run.publish(1)  # every element, and so every scale
    engine.update(run.stage())
    run.follower.finish()
    assert weights.compare(deltawire.Checkpoint(run.paths[1])) == {}

    run.publish(2)  # a few elements: of some units, the largest
    update = run.stage()
    done = []  # the report of the stores, and how many units were quantised again
    with monkeypatch.context() as watched:
        for method in ("apply", "redo"):
            original = getattr(weights, method)
            watched.setattr(weights, method, lambda *args, original=original: (
                done.append(original(*args)) or done[-1]))
        engine.update(update)
    run.follower.finish()
    n_units = sum(weight.n_units for weight in weights._online.values())
    assert 0 < done[0].n_stored < done[0].n_changed and 0 < done[1] < n_units
    now = bits(engine)
    assert different(now, bits(Engine(run.paths[2], quantization=scheme))) == []
    assert different(now, first) != []

    # weights that are not what they were take no patch
    run.publish(1)
    update = run.stage()
    weights._online[name].elements().bitwise_xor_(1)
    before = bits(engine)
    with pytest.raises(Exception, match="is not what .* replaces"):
        engine.update(update)
    assert different(bits(engine), before) == []
    run.follower.finish()

    # ... until they were loaded whole, and wrong scales are found
    engine.update(run.snapshot())
    checkpoint = deltawire.Checkpoint(run.paths[1])
    assert weights.compare(checkpoint) == {}
    weights._online[name].scales()[0] *= 2
    assert list(weights.compare(checkpoint).values()) == [1]
    weights._online[name].scales()[0] /= 2
    run.close()


# ---- experts on a stand-in ---------------------------------------------------------------


class Experts(torch.nn.Module):
    """A layer of experts after one of vLLM's methods has quantised it; only the choice of a
    kernel, which needs a GPU, is left out."""

    def __init__(self, method, w13, w2):
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

        super().__init__()
        self.local_num_experts = len(w13)
        self.w13_weight = torch.nn.Parameter(w13.clone(), requires_grad=False)
        self.w2_weight = torch.nn.Parameter(w2.clone(), requires_grad=False)
        record_metadata_for_reloading(self)
        self.quant_method = object.__new__(method)
        self.quant_method.moe = SimpleNamespace(tp_size=1)
        self.quant_method._setup_kernel = self.replace
        self.quant_method.process_weights_after_loading(self)

    def replace(self, layer, w13, w2, w13_scale, w2_scale, **_):
        for name, value in (("w13_weight", w13), ("w2_weight", w2),
                            ("w13_weight_scale", w13_scale), ("w2_weight_scale", w2_scale)):
            self._parameters.pop(name, None)
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    def bits(self):
        return {name: p.detach().reshape(-1).view(torch.uint8)
                for name, p in self.named_parameters()}


@pytest.mark.parametrize("name", ["Fp8PtpcOnlineMoEMethod", "Fp8PerTensorOnlineMoEMethod"])
def test_experts_with_scales_of_rows_and_of_tensors(quantising, name):
    from deltawire.vllm import online
    from vllm.model_executor.layers.quantization.online import fp8

    torch.manual_seed(3)
    old = {part: (0.1 * torch.randn(shape)).to(torch.bfloat16)
           for part, shape in (("w13_weight", (5, 64, 48)), ("w2_weight", (5, 48, 32)))}
    new = {part: w.clone() for part, w in old.items()}
    for w in new.values():
        at = torch.rand(w.shape) < 0.01
        w[at] += (0.1 * torch.randn(w.shape)).to(w.dtype)[at]
        at[:] = False
        at[3, 7] = True  # a whole row
        w[at] = (w[at].float() * 2).to(w.dtype)
    layer = Experts(getattr(fp8, name), *old.values())
    fresh = Experts(getattr(fp8, name), *new.values())
    weights = online.weights_of("experts", layer)
    assert [weight.target for weight in weights] == ["experts.w13_weight", "experts.w2_weight"]
    n_pending = 0
    for weight in weights:
        x, y = old[weight.part], new[weight.part]
        assert weight.compare(x) == 0
        positions = (x != y).view(-1).nonzero()[:, 0]
        values = x.view(-1)[positions], y.view(-1)[positions]
        weight.check(positions, values[0], "the patch")
        with pytest.raises(RuntimeError, match="not what the patch replaces"):
            weight.check(positions, -values[0], "the patch")
        assert 0 <= weight.store(positions, *values) < len(positions)
        n_pending += int(weight.pending.sum())
        assert bool(weight.pending.any()) and not bool(weight.pending.all())
        weight.redo(y)
        assert weight.compare(y) == 0 and not bool(weight.pending.any())
    assert different(layer.bits(), fresh.bits()) == []
    assert 0 < n_pending < sum(weight.n_units for weight in weights)


# ---- ranks -------------------------------------------------------------------------------


def on_two_ranks(where, scheme, **environment):
    """What vllm_online_ranks.py does with a patch from version 1 to version 2."""
    run = FiniteRun(where, "Qwen3")
    run.publish(1)
    run.follower.sync()
    first = run.snapshot()
    run.publish(2)
    update = run.stage()  # not finished: the patch exists
    with open(where / "log", "wb") as log:
        made = subprocess.run(
            [sys.executable, vllm_server.HERE / "vllm_online_ranks.py", scheme, run.paths[1],
             json.dumps(first | {"dir": str(run.paths[1])}), json.dumps(update), run.paths[2]],
            env=vllm_server.environment(vllm_server.HERE, **environment),
            stdout=subprocess.PIPE, stderr=log, text=True)
    assert made.returncode == 0, (where / "log").read_text()[-6000:]
    run.close()
    answer = json.loads(made.stdout)
    assert "nothing was stored: rank 1: " in answer["refused"]
    assert answer["then"] == answer["first"]
    for rank in range(2):
        assert answer["patched"][rank] == answer["fresh"][rank]
        assert answer["patched"][rank] != answer["first"][rank]
    assert answer["fresh"][0] != answer["fresh"][1]
    return answer


@pytest.mark.parametrize("scheme, n_shared", [("fp8_per_channel", 4), ("fp8", 8)])
def test_ranks_that_share_scales(tmp_path, scheme, n_shared):
    """Each of two layers has two weights that are split at columns, and two at rows."""
    answer = on_two_ranks(tmp_path, scheme)
    for done in answer["done"]:
        assert done["reasons"] == {} and done["forgotten"] == []
        assert len(done["online"]) == 8 and len(done["shared"]) == n_shared
        assert done["stored"] > 0 and 0 < done["redone"] < done["units"]
        assert done["redone"] == answer["done"][0]["redone"] or scheme == "fp8_per_channel"


def test_ranks_load_a_layer_together_if_one_does_not_know_it(tmp_path):
    """Only that layer, and on both of them: vLLM's load of it has ranks wait for each other."""
    answer = on_two_ranks(tmp_path, "fp8_per_channel", HIDDEN="down_proj")
    for done in answer["done"]:
        layers = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)]
        assert sorted(done["reasons"]) == done["forgotten"] == layers
        assert len(done["online"]) == 6 and len(done["shared"]) == 2
