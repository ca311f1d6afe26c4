from ._core import *
from ._core import __version__ as __version__
