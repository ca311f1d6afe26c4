from ._core import *
from ._core import Shortcut as Shortcut
from ._core import __version__ as __version__
from ._outcomes import PublishWarning as PublishWarning
