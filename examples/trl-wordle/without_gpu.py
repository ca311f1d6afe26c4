"""Lets TRL's asynchronous trainer run without a GPU. The trainer asks for a GPU's name, and packs
its batches for a kernel of FlashAttention. This provides both, in plain PyTorch."""
from __future__ import annotations

import types

import torch
from trl.experimental.async_grpo import packing


def attention_of_segments(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=None, causal=True,
                          window_size=(-1, -1)):
    """Each segment of queries sees its own keys: q, k and v are (tokens, heads, width)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = []
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        n_q, n_k = int(b - a), int(d - c)
        # the last query is at the last key
        at_q = torch.arange(n_q)[:, None] + (n_k - n_q)
        sees = torch.arange(n_k)[None, :] <= at_q
        if window_size[0] >= 0:
            sees &= torch.arange(n_k)[None, :] >= at_q - window_size[0]
        out.append(torch.nn.functional.scaled_dot_product_attention(
            q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1),
            attn_mask=sees, scale=softmax_scale).transpose(0, 1))
    return torch.cat(out)


def prepare() -> None:
    if torch.cuda.is_available():
        return
    torch.cuda.get_device_name = lambda *_: "none"
    kernels = types.SimpleNamespace(flash_attn_varlen_func=attention_of_segments)
    packing._flash_attn = lambda: kernels
