"""vLLM's own parsers read the config.json and the tensors of a quantised checkpoint."""
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
import safetensors  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("DW_QUANTIZE_DRIVER",
                        str(ROOT / "build" / "tests" / "quantize_driver"))
LAYER = "model.layers.0."
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
ROWS = {LAYER + "self_attn.q_proj.weight": 256, LAYER + "self_attn.k_proj.weight": 128,
        LAYER + "self_attn.v_proj.weight": 128, LAYER + "mlp.gate_proj.weight": 384,
        LAYER + "mlp.up_proj.weight": 384, LAYER + "mlp.gate.weight": 8,
        "model.embed_tokens.weight": 100}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """A function that gives the quantization_config and the shapes of a scheme."""
    where = tmp_path_factory.mktemp("quantised")
    save_file({name: torch.randn(rows, 256).bfloat16() for name, rows in ROWS.items()} |
              {"model.norm.weight": torch.ones(256).bfloat16()}, where / "model.safetensors")
    (where / "config.json").write_text(json.dumps({"model_type": "qwen3"}))

    def make(scheme):
        command = [DRIVER, scheme, where / "model.safetensors", where / f"{scheme}.safetensors"]
        subprocess.run(command, check=True)
        text = subprocess.run(command + [f"config={where}/config.json"], check=True,
                              capture_output=True, text=True).stdout
        with safetensors.safe_open(where / f"{scheme}.safetensors", "pt") as file:
            shapes = {n: (file.get_tensor(n).dtype, tuple(file.get_tensor(n).shape))
                      for n in file.keys()}
        return json.loads(text)["quantization_config"], shapes
    return make


def test_fp8_block(quantised):
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

    raw, shapes = quantised("fp8-block")
    config = Fp8Config.from_config(raw)
    assert config.is_checkpoint_fp8_serialized
    assert config.activation_scheme == "dynamic"
    assert config.weight_block_size == [128, 128]

    def is_skipped(name):
        return is_layer_skipped(name, config.ignored_layers, FUSED)
    assert is_skipped("lm_head") and is_skipped(LAYER + "mlp.gate")
    assert not is_skipped(LAYER + "self_attn.qkv_proj")
    assert not is_skipped(LAYER + "mlp.gate_up_proj")
    assert shapes[LAYER + "mlp.up_proj.weight"] == (torch.float8_e4m3fn, (384, 256))
    assert shapes[LAYER + "mlp.up_proj.weight_scale_inv"] == (torch.float32, (3, 2))


@pytest.mark.parametrize("scheme", ["fp8-row", "int8-row"])
def test_rows(quantised, scheme):
    from compressed_tensors.quantization import (QuantizationConfig, QuantizationStrategy,
                                                 QuantizationType)
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig)
    from vllm.model_executor.layers.quantization.compressed_tensors.utils import (
        should_ignore_layer)

    raw, shapes = quantised(scheme)
    kind = QuantizationType.INT if scheme == "int8-row" else QuantizationType.FLOAT
    group = QuantizationConfig.model_validate(raw).config_groups["group_0"]
    assert (group.weights.type, group.input_activations.type) == (kind, kind)

    config = CompressedTensorsConfig.from_config(raw)
    scheme_of_linear = config.target_scheme_map["Linear"]
    weights, inputs = scheme_of_linear["weights"], scheme_of_linear["input_activations"]
    assert (weights.num_bits, weights.strategy) == (8, QuantizationStrategy.CHANNEL)
    assert (inputs.num_bits, inputs.strategy) == (8, QuantizationStrategy.TOKEN)
    if scheme == "int8-row":
        assert config.quant_format == "int-quantized"
        assert config._is_dynamic_token_w8a8(weights, inputs)
    else:
        assert config.quant_format == "float-quantized"
        assert config._is_fp8_w8a8(weights, inputs)

    def is_ignored(name):
        return should_ignore_layer(name, config.ignore, FUSED)
    assert is_ignored("lm_head") and is_ignored(LAYER + "mlp.gate")
    assert not is_ignored(LAYER + "self_attn.qkv_proj")
    dtype = torch.int8 if scheme == "int8-row" else torch.float8_e4m3fn
    assert shapes[LAYER + "mlp.up_proj.weight"] == (dtype, (384, 256))
    assert shapes[LAYER + "mlp.up_proj.weight_scale"] == (torch.float32, (384, 1))
