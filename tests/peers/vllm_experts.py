"""Tests of quantised experts, which test_vllm_online.py runs in a process of their own."""
import torch

import deltawire
from test_vllm_online import bits, check_updates, different, packing, quantising  # noqa: F401
from test_vllm_weights import Engine, Run

from deltawire.vllm import quantised

EXPERTS = "model.layers.0.mlp.experts.routed_experts"


def test_experts_that_vllm_quantises(tmp_path, packing, monkeypatch):  # noqa: F811
    check_updates(
        tmp_path, monkeypatch, "fp8_per_block", "Qwen3Moe-wide",
        {"Fp8PerBlockOnlineLinearMethod", "Fp8PerBlockOnlineMoEMethod"},
        f"{EXPERTS}.w13_weight")


def test_experts_of_a_checkpoint_in_fp8_blocks(tmp_path, packing):  # noqa: F811
    run = Run(tmp_path, "Qwen3Moe-fp8")
    engine = Engine(run.paths[0])
    weights = engine.backend._weights
    kinds = {layer.target: type(layer) for layer in weights._layers}
    assert kinds[f"{EXPERTS}.w13_weight"] is quantised.PackedFp8
    assert kinds[f"{EXPERTS}.w2_weight"] is quantised.PackedFp8
    assert weights.reasons == {}
    assert weights.held == {name: w.numel() for name, w in run.versions[0].items()}
    first = bits(engine)
    engine.update(run.snapshot())
    assert different(bits(engine), first) == []
    for which in (1, 2):
        run.publish(which)
        engine.update(run.stage())
        run.follower.finish()
        assert weights.compare(deltawire.Checkpoint(run.paths[which])) == {}
    now = bits(engine)
    assert different(now, bits(Engine(run.paths[2]))) == []
    assert f"{EXPERTS}.w2_weight_scale_inv" in different(now, first)
    run.close()
