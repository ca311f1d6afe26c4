"""Every run of pytest has an empty HOME of its own, as tests/own_home.sh gives to other
tests: no test reads or writes the files of the user who runs it."""
import atexit
import os
import shutil
import tempfile


def take_own_home():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("DELTAWIRE_CACHE", os.path.join(cache, "deltawire"))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ["HOME"] = tempfile.mkdtemp()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


take_own_home() # before a module is imported that remembers the place of its cache
