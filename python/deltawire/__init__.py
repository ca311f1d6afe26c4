"""Deltas, checkpoints and streams of model weights: docs/PYTHON.md."""
from ._core import *
from ._core import __version__
from ._outcomes import PublishWarning
