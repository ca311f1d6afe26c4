"""An independent quantiser for checkpoints that vLLM loads: int8 with a scale for each row, in the
form of compressed-tensors, and fp8 with a scale for each block of 128 x 128."""
import json

import torch

BLOCK = 128


def _int8_rows(w):
    scale = w.abs().amax(dim=1, keepdim=True) / 127
    scale[scale == 0] = 1
    return torch.round(w / scale).clamp(-127, 127).to(torch.int8), scale


def _fp8_blocks(w):
    """Rows and columns are multiples of the block's."""
    blocks = w.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = blocks.abs().amax(dim=(1, 3)) / 448
    scale[scale == 0] = 1
    values = (blocks / scale[:, None, :, None]).clamp(-448, 448)
    return values.to(torch.float8_e4m3fn).reshape(w.shape), scale


def _fp8_rows(w):
    scale = w.abs().amax(dim=1, keepdim=True) / 448
    scale[scale == 0] = 1
    return (w / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


SCHEMES = {"fp8rows": (_fp8_rows, "_scale"), "int8": (_int8_rows, "_scale"), "fp8": (_fp8_blocks, "_scale_inv")}


def quantise(tensors, scheme="int8", part=""):
    """Linear weights whose names contain PART are quantised."""
    function, suffix = SCHEMES[scheme]
    out = dict(tensors)
    for name, w in tensors.items():
        if part in name and name.endswith("_proj.weight"):
            out[name], out[name + suffix] = function(w.float())
    return out


def add_config(directory, scheme="int8", ignored=("lm_head",)):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    numbers = {"num_bits": 8, "type": "int" if scheme == "int8" else "float",
               "symmetric": True}
    rows = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if scheme == "int8" else "float-quantized",
        "quantization_status": "compressed", "ignore": ignored,
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": numbers | {"strategy": "channel", "dynamic": False},
            "input_activations": numbers | {"strategy": "token", "dynamic": True}}}}
    config["quantization_config"] = {
        "int8": rows, "fp8rows": rows,
        "fp8": {
            "quant_method": "fp8", "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ignored},
    }[scheme]
    path.write_text(json.dumps(config))
