"""What a model had before its parameters were replaced for a time."""
from __future__ import annotations

from typing import Any, Callable


class Undo:
    """Steps that put a model back, done at the end of a `with`. They are kept until they are done:
    after an interrupt whoever uses the model next calls it. Add a step before the change; it may
    run twice."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], Any]] = []

    def add(self, step: Callable[[], Any]) -> None:
        self._steps.append(step)

    def __call__(self) -> None:
        failure = None
        while self._steps:
            try:
                self._steps[-1]()
            except Exception as error:  # noqa: BLE001 - the others are done all the same
                failure = failure or error
            self._steps.pop()
        if failure is not None:
            raise failure

    def __enter__(self) -> Undo:
        self()
        return self

    def __exit__(self, *_: object) -> None:
        self()
