"""The companion files of a model in memory: what save_pretrained would write beside its weights."""
from __future__ import annotations

import contextlib
import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any, Iterator

from . import _peft


def _save_config(model: Any, into: str, dtype: Any) -> None:
    config = copy.deepcopy(getattr(model, "config", None))
    if hasattr(config, "save_pretrained"):
        if not getattr(config, "architectures", None):
            config.architectures = [type(model).__name__]
        if _peft.unties(model):
            config.tie_word_embeddings = False
        if dtype is not None and _is_float32(model):
            setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", dtype)
        config.save_pretrained(into)


def _is_float32(model: Any) -> bool:
    weights = list(model.parameters())
    return bool(weights) and "float32" in str(max(weights, key=lambda w: w.numel()).dtype)


def _save(part: Any, into: str) -> None:
    if hasattr(part, "save_pretrained"):
        part.save_pretrained(into)


@contextlib.contextmanager
def saved_files(
    model: Any, processing_class: Any = None, dtype: Any = None
) -> Iterator[str | None]:
    """A temporary directory with the configuration of the model and the files of its tokenizer or
    processor; None if there are none. DTYPE is what float32 weights are published
    as; None: as they are. What cannot be saved is left out, with a warning."""
    while hasattr(model, "module") or hasattr(model, "_orig_mod"):
        model = getattr(model, "module", None) or model._orig_mod
    if _peft.has_adapters(model) and hasattr(model, "get_base_model"):
        model = model.get_base_model()
    with tempfile.TemporaryDirectory(prefix="deltawire-files-") as into:
        for save, part in ((lambda *a: _save_config(*a, dtype), model),
                           (_save, getattr(model, "generation_config", None)),
                           (_save, processing_class)):
            try:
                save(part, into)
            except Exception as error:  # training must not depend on it
                warnings.warn(f"the stream gets no companion files of "
                              f"{type(part).__name__}: {error}", stacklevel=3)
        yield into if any(Path(into).iterdir()) else None
