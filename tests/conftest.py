"""Every run of pytest has an empty HOME of its own, as tests/own_home.sh gives to other
tests: no test reads or writes the files of the user who runs it. Nor does it send anything to
another machine, if scripts/test.sh could give it a network that has only loopback."""
import atexit
import os
import pathlib
import shutil
import tempfile

import pytest


def take_own_home():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("DELTAWIRE_CACHE", os.path.join(cache, "deltawire"))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ["HOME"] = tempfile.mkdtemp()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:9"
    os.environ["GCE_METADATA_HOST"] = "127.0.0.1:9"
    os.environ["VLLM_HOST_IP"] = "127.0.0.1"  # else vLLM looks for a route to a public address
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


def without_route():
    """How many packets were to leave the network and could not."""
    if "DW_TEST_LOOPBACK" not in os.environ:
        return 0
    names, counts = (line.split() for line in pathlib.Path("/proc/net/snmp").read_text().split("\n")[:2])
    v6 = pathlib.Path("/proc/net/snmp6")
    return int(counts[names.index("OutNoRoutes")]) + sum(
        int(line.split()[1]) for line in (v6.read_text().split("\n") if v6.exists() else ())
        if line.startswith("Ip6OutNoRoutes"))


take_own_home() # before a module is imported that remembers the place of its cache
packets = without_route()


@pytest.fixture(autouse=True)
def stays_on_this_machine():
    global packets
    yield
    before, packets = packets, without_route()
    assert packets == before, ("this test, or one that ran beside it, sent packets to an address "
                               "that is not loopback")
