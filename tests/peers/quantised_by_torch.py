"""An operator that vLLM's build for CPUs lacks."""
import torch


def scaled_fp8_quant(input, scale=None, num_token_padding=None, scale_ub=None,
                     use_per_token_if_dynamic=False, output=None, group_shape=None):
    if scale is not None:
        scaled = input.float() * (1.0 / scale)
    else:
        assert use_per_token_if_dynamic
        greatest = input.abs().amax(dim=1, keepdim=True).float()
        scale = (greatest / torch.tensor(448.0)).clamp_min(1.0 / (448 * 512))
        scaled = input.float() / scale
    return scaled.clamp(-448, 448).to(torch.float8_e4m3fn), scale
