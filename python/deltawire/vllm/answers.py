"""vLLM's executor of several processes stops reading the workers' answers at the first error. The
others then pass for answers to the next call, whose own are not waited for: an engine would be
resumed while a worker stores, and an error be blamed on another update. With this back end all
answers to a call are read."""
from __future__ import annotations

import functools
from typing import Any, Iterator

_names: set[str] = set()


class Answers(list):
    """The queues of the workers' answers. If a loop over them is left early, the rest is read."""

    def __iter__(self) -> Iterator[Any]:
        queues = super().__iter__()
        try:
            yield from queues
        finally:
            for queue in queues:
                queue.dequeue()


def install(name: str) -> None:
    """For engines with the back end NAME. Call it before they start their workers."""
    first = not _names
    _names.add(name)
    if not first:
        return
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    start = MultiprocExecutor._init_executor

    @functools.wraps(start)
    def started(executor: Any) -> None:
        start(executor)
        transfer = executor.vllm_config.weight_transfer_config
        queues = getattr(executor, "response_mqs", None)
        if queues and transfer is not None and transfer.backend in _names:
            executor.response_mqs = Answers(queues)

    MultiprocExecutor._init_executor = started
