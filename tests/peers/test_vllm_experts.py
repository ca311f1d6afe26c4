"""Experts in the forms that vLLM's kernels for GPUs keep them in, with two ranks: vLLM's own
classes load and quantise them, and only the choice of a kernel, which needs a GPU, is left out. A
patched rank must have the bits of one that loads the new version."""
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import deltawire  # noqa: E402
import quantiser  # noqa: E402
from quantised_by_torch import scaled_fp8_quant  # noqa: E402

from deltawire.vllm import quantised  # noqa: E402
from deltawire.vllm.weights import Weights, table_of  # noqa: E402

N_RANKS = 2
N_EXPERTS, HIDDEN, INNER = 5, 48, 64
LOG = SimpleNamespace(warning=lambda *_: None)


class Group:
    """Of two ranks, which are threads."""

    def __init__(self):
        self.barrier = threading.Barrier(N_RANKS)
        self.here = threading.local()
        self.parts = [None] * N_RANKS

    def greatest(self, amax, n_ranks):
        assert n_ranks == N_RANKS
        self.parts[self.here.rank] = amax
        self.barrier.wait()
        greatest = torch.maximum(*self.parts)
        self.barrier.wait()
        return greatest

    def run(self, function):
        """The results of FUNCTION on both ranks."""
        results, errors = [None] * N_RANKS, []

        def work(rank):
            self.here.rank = rank
            try:
                results[rank] = function(rank)
            except BaseException as error:  # noqa: BLE001 - reported below
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(N_RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class Experts(torch.nn.Module):
    """A layer of experts: the part of one rank, before it is loaded."""

    def __init__(self, method, part):
        super().__init__()
        self.local_num_experts, self.quant_method = N_EXPERTS, method
        if hasattr(method, "weight_quant"):
            method.create_weights(self, N_EXPERTS, HIDDEN, part, torch.bfloat16)
        else:
            for name, shape in (("w13_weight", (2 * part, HIDDEN)), ("w2_weight", (HIDDEN, part))):
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(
                    N_EXPERTS, *shape, dtype=torch.bfloat16), requires_grad=False))

    def _expert_routing_tables(self):
        return None


class Model(torch.nn.Module):
    def __init__(self, method, rank, tensors):
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

        super().__init__()
        self.rank, self.part = rank, INNER // N_RANKS
        self.experts = Experts(method, self.part)
        record_metadata_for_reloading(self.experts)
        with torch.no_grad():
            self.load_weights(tensors.items())
            method.process_weights_after_loading(self.experts)

    def load_weights(self, pairs):
        loaded, own = set(), slice(self.rank * self.part, (self.rank + 1) * self.part)
        for name, w in pairs:
            if name == "experts.down_proj.weight":  # of all experts
                for expert in range(N_EXPERTS):
                    loaded.add(self.load(expert, "down_proj", "weight", w[expert], own))
            else:
                _, expert, projection, kind = name.split(".")
                loaded.add(self.load(int(expert), projection, kind, w, own))
        return loaded

    def load(self, expert, projection, kind, w, own):
        into = f"w{'2' if projection == 'down_proj' else '13'}_{kind}"
        target = self.experts._parameters[into].data[expert]
        if projection != "down_proj":
            first = self.part * (projection == "up_proj")
            target[first:first + self.part].copy_(w[own])
        elif kind == "weight":
            target.copy_(w[:, own])
        else:
            target.copy_(w)
        return f"experts.{into}"

    def bits(self):
        return {name: torch.empty(p.shape, dtype=p.dtype).copy_(p).view(-1).view(torch.uint8)
                for name, p in self.named_parameters()}


def two_versions():
    """In bf16. A few elements change; of one row, the largest one, on each rank in turn."""
    torch.manual_seed(3)
    shapes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN),
              "down_proj": (HIDDEN, INNER)}
    old = {f"experts.{e}.{projection}.weight": (0.1 * torch.randn(shape)).to(torch.bfloat16)
           for e in range(N_EXPERTS) for projection, shape in shapes.items()}
    new = {}
    for number, (name, w) in enumerate(old.items()):
        w = w.clone()
        if ".4." not in name:  # an expert that stays
            at = torch.rand(w.shape) < 0.004
            w[at] += (0.01 * torch.randn(w.shape)).to(w.dtype)[at]
        if ".3." in name:
            w[7, w.shape[1] // 4 * (1 + number % 2 * 2)] = 1.5 + number / 8
        new[name] = w
    return old, new


class Stream:
    def __init__(self, where, old, new):
        live = {name: w.clone() for name, w in old.items()}
        self.publisher = deltawire.Publisher(f"file://{where}/run", live)
        self.follower = deltawire.Follower(f"file://{where}/run", into=where / "dir",
                                           report=False)
        self.follower.sync()
        self.dir = where / "dir"
        self.live, self.new = live, new

    def stage(self):
        """The patch; afterwards the directory has the new version."""
        for name, w in self.new.items():
            self.live[name].copy_(w)
        self.publisher.wait(self.publisher.publish())
        self.follower.stage()
        self.follower.prepare()
        self.follower.apply()
        return self.follower.staged_path

    def close(self):
        self.follower.finish()
        self.follower.close()
        self.publisher.close()


def check_ranks(where, models, old, new, check):
    """MODELS makes those of both ranks; CHECK sees the weights and the report of each."""
    stream = Stream(where, old, new)
    config = SimpleNamespace(dtype=torch.bfloat16)
    learnt = []
    for model in models(old):
        weights = Weights(model, config, table_of(deltawire.Checkpoint(stream.dir)), LOG)
        assert weights.confirm(deltawire.Checkpoint(stream.dir)) is False
        assert weights.reasons == {}
        learnt.append((model, weights))
    patch, fresh = stream.stage(), models(new)
    for (model, weights), wanted in zip(learnt, fresh):
        before = model.bits()
        report = weights.apply(patch, None)
        n = weights.redo(deltawire.Checkpoint(stream.dir)) if weights.is_pending else 0
        check(weights, report, n)
        found, bits = model.bits(), wanted.bits()
        assert [name for name in bits if not torch.equal(found[name], bits[name])] == []
        assert [name for name in bits if not torch.equal(found[name], before[name])]
        assert weights.compare(deltawire.Checkpoint(stream.dir)) == {}
    stream.close()


# ---- experts that vLLM quantises ---------------------------------------------------------


@pytest.fixture
def group(monkeypatch):
    from vllm import _custom_ops
    from vllm.model_executor.layers.quantization.online import fp8

    group = Group()
    monkeypatch.setattr(_custom_ops, "scaled_fp8_quant", scaled_fp8_quant)
    monkeypatch.setattr(fp8, "amax_for_moe_weight_quant", group.greatest)
    # what ranks agree on before they use a layout; here all know all weights
    monkeypatch.setattr(Weights, "_agree", lambda self, is_known: dict(is_known))
    return group


def online_method(name):
    from vllm.model_executor.layers.quantization.online import fp8

    def replace(layer, w13, w2, w13_scale, w2_scale, **_):
        for name, value in (("w13_weight", w13), ("w2_weight", w2),
                            ("w13_weight_scale", w13_scale), ("w2_weight_scale", w2_scale)):
            layer._parameters.pop(name, None)
            layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    method = object.__new__(getattr(fp8, name))
    method.moe = SimpleNamespace(tp_size=N_RANKS)
    method._setup_kernel = replace
    return method


@pytest.mark.parametrize("stacked", [False, True], ids=["each", "stack"])
@pytest.mark.parametrize("name, shared", [
    ("Fp8PtpcOnlineMoEMethod", ["experts.w2_weight"]),
    ("Fp8PerTensorOnlineMoEMethod", ["experts.w13_weight", "experts.w2_weight"])])
def test_ranks_that_share_the_scales_of_experts(tmp_path, group, name, shared, stacked):
    old, new = two_versions()
    if stacked:  # as some checkpoints have them
        for version in (old, new):
            version["experts.down_proj.weight"] = torch.stack(
                [version.pop(f"experts.{e}.down_proj.weight") for e in range(N_EXPERTS)])

    def models(tensors):
        return group.run(lambda rank: Model(online_method(name), rank, tensors))

    def check(weights, report, n_redone):
        assert list(weights._shared) == shared and len(weights._online) == 2
        n_units = sum(weight.n_units for weight in weights._online.values())
        assert report.n_stored > 0 and 0 < n_redone < n_units

    check_ranks(tmp_path, models, old, new, check)


def test_tensors_that_are_cut_in_an_unknown_way_are_loaded_by_vllm(tmp_path, group):
    """Two tensors make up the rows of an expert."""
    old, _ = two_versions()
    [model, _] = group.run(lambda rank: Model(online_method("Fp8PtpcOnlineMoEMethod"), rank, old))
    split = dict(old)
    whole = split.pop("experts.2.down_proj.weight")
    split |= {"experts.2.down_proj.left": whole[:, :INNER // 4].contiguous(),
              "experts.2.down_proj.right": whole[:, INNER // 4:].contiguous()}
    load = model.load_weights

    def load_weights(pairs):
        tensors = dict(pairs)
        halves = [tensors.pop(f"experts.2.down_proj.{half}") for half in ("left", "right")]
        return load((tensors | {"experts.2.down_proj.weight": torch.cat(halves, 1)}).items())

    model.load_weights = load_weights
    weights = Weights(model, SimpleNamespace(dtype=torch.bfloat16), table_of_tensors(split), LOG)
    assert weights._online == {} and set(weights.reasons) == set(split)
    assert set(weights._redone) == set(split)
    assert "split among ranks" in weights.reasons["experts.2.down_proj.left"]


def test_other_methods_are_left_to_vllm(group):
    """For each layer by itself, instead of the whole model."""
    from vllm.model_executor.layers.quantization.online.int8 import Int8OnlineMoEMethod

    old, _ = two_versions()
    method = object.__new__(Int8OnlineMoEMethod)
    method.process_weights_after_loading = lambda layer: None
    weights = Weights(Model(method, 0, old), SimpleNamespace(dtype=torch.bfloat16),
                      table_of_tensors(old), LOG)
    assert weights._online == {} and weights._layers == []
    assert set(weights._redone) == set(weights.reasons) == set(old)
    assert "form" in weights.reasons["experts.2.up_proj.weight"]


def table_of_tensors(tensors):
    return {name: ("BF16", tuple(w.shape)) for name, w in tensors.items()}


# ---- experts of a checkpoint with a scale for each row -----------------------------------


def checkpoint_method(scheme, backend):
    """Of compressed-tensors."""
    from compressed_tensors.quantization import QuantizationStrategy
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
    from vllm.model_executor.layers.fused_moe.oracle.int8 import Int8MoeBackend
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_w8a8_fp8 as fp8,
        compressed_tensors_moe_w8a8_int8 as int8,
    )

    method = object.__new__(int8.CompressedTensorsW8A8Int8MoEMethod if scheme == "int8"
                            else fp8.CompressedTensorsW8A8Fp8MoEMethod)
    method.weight_quant = SimpleNamespace(strategy=QuantizationStrategy.CHANNEL)
    method.moe = SimpleNamespace(is_act_and_mul=True, has_bias=False, tp_size=N_RANKS)
    method.static_input_scales = method.block_quant = False
    method.experts_cls = object
    method.get_fused_moe_quant_config = lambda layer: None
    if scheme == "int8":
        method.int8_backend = Int8MoeBackend[backend]
    else:
        method.fp8_backend = Fp8MoeBackend[backend]
    return method


@pytest.mark.parametrize("scheme, backend", [
    ("fp8rows", "TRITON"), ("fp8rows", "VLLM_CUTLASS"), ("int8", "TRITON")])
def test_experts_of_a_checkpoint_with_scales_of_rows(tmp_path, monkeypatch, scheme, backend):
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_w8a8_int8 as int8,
    )

    nothing = SimpleNamespace(process_weights_after_loading=lambda layer: None)
    monkeypatch.setattr(int8, "make_int8_moe_kernel",
                        lambda **_: SimpleNamespace(fused_experts=nothing))
    monkeypatch.setattr(quantised, "_is_on_device", lambda weight: True)
    old, new = (quantiser.quantise(tensors, scheme) for tensors in two_versions())

    def models(tensors):
        return [Model(checkpoint_method(scheme, backend), rank, tensors)
                for rank in range(N_RANKS)]

    def check(weights, report, n_redone):
        assert {layer.target: type(layer) for layer in weights._layers} == {
            "experts.w13_weight": quantised.Layer, "experts.w2_weight": quantised.Layer}
        part = {name: w.numel() // (1 if name.endswith("down_proj.weight_scale") else N_RANKS)
                for name, w in old.items()}
        assert weights.held == part
        assert 0 < report.n_stored < report.n_changed

    check_ranks(tmp_path, models, old, new, check)
