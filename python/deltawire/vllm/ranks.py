"""The workers of one engine. Each has a share of the weights, so a version is stored by all of
them or by none."""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple

import torch

_AXES = {"tp": "tensor_parallel_size", "pcp": "prefill_context_parallel_size",
         "pp": "pipeline_parallel_size"}
"""vLLM's groups, which make up all workers that one request reaches. Replicas are asked apart."""


class Vote(NamedTuple):
    error: str | None = None
    is_refusal: bool = False
    """Whether the error left this rank's weights as they were."""
    result: Any = None


def gathered(vote: Vote, parallel_config: Any) -> list[Vote]:
    """The votes of all ranks, which wait here for each other. A single one waits for nobody."""
    votes = [vote]
    for group in _groups(parallel_config):
        found: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(found, votes, group=group)
        votes = [one for part in found for one in part]
    return votes


def _groups(parallel_config: Any) -> Iterator[Any]:
    for name, size in _AXES.items():
        if getattr(parallel_config, size, 1) > 1:
            from vllm.distributed import parallel_state

            yield getattr(parallel_state, f"get_{name}_group")().cpu_group
