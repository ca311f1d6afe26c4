"""Replaces the back end in a vLLM that is too old for it."""
from typing import Any, NoReturn


def refused(*_: Any) -> NoReturn:
    import vllm

    from . import refusal

    raise RuntimeError(refusal(vllm.__version__))
