"""A model that keeps its weights as vLLM does, and what the back end needs of vLLM, for machines
without it. Tensors are fused, padded, transposed and split among two ranks."""
import sys
import types
from typing import Generic, TypeVar

import torch

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, EXPERTS, VOCABULARY, LAYERS = 64, 8, 4, 16, 96, 4, 250, 2
PADDED = 256


def shapes():
    """The checkpoint's tensors."""
    out = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
           "lm_head.weight": (VOCABULARY, HIDDEN)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        out |= {f"{at}.input_layernorm.weight": (HIDDEN,),
                f"{at}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
                f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
                f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
                f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
                f"{at}.mlp.down_proj.weight": (HIDDEN, INNER)}
        for e in range(EXPERTS):
            out |= {f"{at}.moe.experts.{e}.gate_proj.weight": (INNER, HIDDEN),
                    f"{at}.moe.experts.{e}.up_proj.weight": (INNER, HIDDEN),
                    f"{at}.moe.experts.{e}.down_proj.weight": (HIDDEN, INNER)}
    return out


class Model(torch.nn.Module):
    """The share of RANK of two."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"],
                              "gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self, rank, device, doubled=False, tied=False):
        super().__init__()
        self.rank, self.doubled, self.tied = rank, doubled, tied
        n = 2

        def add(name, *shape):
            parts = name.split(".")
            module = self
            for part in parts[:-1]:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            weight = torch.zeros(shape, dtype=torch.bfloat16, device=device)
            if name == "lm_head.weight":  # the kernel reads it transposed
                weight = torch.zeros(shape[::-1], dtype=weight.dtype, device=device).t()
            module.register_parameter(parts[-1], torch.nn.Parameter(weight, False))

        add("model.embed_tokens.weight", PADDED // n, HIDDEN)
        if tied:
            self.lm_head = torch.nn.Module()
            self.lm_head.weight = self.model.embed_tokens.weight
        else:
            add("lm_head.weight", PADDED // n, HIDDEN)
        add("model.norm.weight", HIDDEN)
        for i in range(LAYERS):
            at = f"model.layers.{i}"
            add(f"{at}.input_layernorm.weight", HIDDEN)
            add(f"{at}.self_attn.qkv_proj.weight", (HEADS + 2 * KV_HEADS) * HEAD // n, HIDDEN)
            add(f"{at}.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD // n)
            add(f"{at}.mlp.gate_up_proj.weight", 2 * INNER // n, HIDDEN)
            add(f"{at}.mlp.down_proj.weight", HIDDEN, INNER // n)
            add(f"{at}.moe.experts.w13_weight", EXPERTS, 2 * INNER // n, HIDDEN)
            add(f"{at}.moe.experts.w2_weight", EXPERTS, HIDDEN, INNER // n)

    def share(self, weight, dim):
        return weight.chunk(2, dim)[self.rank]

    def load_weights(self, weights):
        """As vLLM's models do; returns the parameters that were loaded."""
        parameters = dict(self.named_parameters())
        loaded = set()
        for name, weight in weights:
            if self.tied and name == "lm_head.weight":
                continue  # vLLM loads one name of a memory
            head, _, last = name.rpartition(".")
            head, _, part = head.rpartition(".")
            half = INNER // 2
            at = None
            if part in ("q_proj", "k_proj", "v_proj"):
                q, kv = HEADS * HEAD // 2, KV_HEADS * HEAD // 2
                start = {"q_proj": 0, "k_proj": q, "v_proj": q + kv}[part]
                target, data = f"{head}.qkv_proj.weight", self.share(weight, 0)
                at = lambda p: p[start:start + len(data)]  # noqa: E731
            elif ".experts." in name:
                head, _, expert = head.rpartition(".")
                expert = int(expert)
                target = f"{head}.w2_weight" if part == "down_proj" else f"{head}.w13_weight"
                data = self.share(weight, 1 if part == "down_proj" else 0)
                start = half if part == "up_proj" else 0
                at = lambda p: (p[expert] if part == "down_proj"  # noqa: E731
                                else p[expert, start:start + half])
            elif part in ("gate_proj", "up_proj"):
                target, data = f"{head}.gate_up_proj.weight", self.share(weight, 0)
                start = half if part == "up_proj" else 0
                at = lambda p: p[start:start + half]  # noqa: E731
            elif part in ("o_proj", "down_proj"):
                target, data = name, self.share(weight, 1)
            elif part in ("embed_tokens", "lm_head"):
                rows = PADDED // 2
                target, data = name, weight[self.rank * rows:(self.rank + 1) * rows]
                at = lambda p: p[:len(data)]  # noqa: E731
            else:
                target, data = name, weight
                if self.doubled and name == "model.norm.weight":
                    data = data * 2
            place = parameters[target].data
            (at(place) if at else place).copy_(data)
            loaded.add(target)
        return loaded

    def forward(self, tokens):
        x = torch.nn.functional.embedding(tokens % (PADDED // 2), self.model.embed_tokens.weight)
        for layer in self.model.layers.children():
            h = x * layer.input_layernorm.weight
            qkv = h @ layer.self_attn.qkv_proj.weight.t()
            x = x + qkv[..., :HEADS * HEAD // 2] @ layer.self_attn.o_proj.weight.t()
            gate, up = (x @ layer.mlp.gate_up_proj.weight.t()).chunk(2, -1)
            x = x + (torch.relu(gate) * up) @ layer.mlp.down_proj.weight.t()
            for w13, w2 in zip(layer.moe.experts.w13_weight, layer.moe.experts.w2_weight):
                gate, up = (x @ w13.t()).chunk(2, -1)
                x = x + (torch.relu(gate) * up) @ w2.t()
            x = x / x.float().norm(dim=-1, keepdim=True).to(x.dtype)
        return (x * self.model.norm.weight) @ self.lm_head.weight.t()


# ---- of vLLM ---------------------------------------------------------------------------


class Log:
    """Keeps what is logged."""

    def __init__(self):
        self.lines = []

    def _add(self, text, *values):
        self.lines.append(text % values)

    info = warning = debug = _add


log = Log()
reloads = []


def install():
    """Puts stand-ins for vLLM's modules in place."""
    Init, Update = TypeVar("Init"), TypeVar("Update")

    class WeightTransferEngine(Generic[Init, Update]):
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = (
                config, vllm_config, device, model)
            self.model_config = vllm_config.model_config
            self.parallel_config = vllm_config.parallel_config

    def module(name, **members):
        made = sys.modules[name] = types.ModuleType(name)
        vars(made).update(members)

    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer",
                 "vllm.model_executor", "vllm.model_executor.model_loader"):
        module(name, __version__="0.32.0", __path__=[])
    module("vllm.distributed.weight_transfer.base", WeightTransferEngine=WeightTransferEngine,
           WeightTransferInitInfo=object, WeightTransferUpdateInfo=object)
    module("vllm.distributed.parallel_state", get_tp_group=lambda: types.SimpleNamespace(
        cpu_group=torch.distributed.group.WORLD))
    module("vllm.logger", init_logger=lambda name: log)
    module("vllm.model_executor.model_loader.reload",
           initialize_layerwise_reload=reloads.append,
           finalize_layerwise_reload=lambda model, config: None)


def config(path, rank):
    """vLLM's configuration of a worker."""
    some = types.SimpleNamespace
    return some(model_config=some(model=str(path), dtype=torch.bfloat16),
                load_config=some(load_format="auto"),
                parallel_config=some(world_size=2, data_parallel_size=1, rank=rank,
                                     data_parallel_rank=0, data_parallel_index=0))
