"""Prometheus' own tools read the agent's /metrics in both formats.

DW_AGENT_DRIVER names the program made of agent_driver.c; build/tests/agent_driver by
default.
"""
import os
import pathlib
import re
import shutil
import subprocess
import urllib.request

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("DW_AGENT_DRIVER", str(ROOT / "build" / "tests" / "agent_driver"))


@pytest.fixture(scope="module", params=["follower", "stream"])
def metrics(request):
    arguments = ["--stream"] if request.param == "stream" else []
    with subprocess.Popen([DRIVER, *arguments], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, encoding="utf-8") as process:
        url = process.stdout.readline().strip() + "metrics"

        def get(accept):
            asked = urllib.request.Request(url, headers={"Accept": accept})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.headers["Content-Type"], answer.read().decode()
        yield get
        process.stdin.close()
        assert process.wait() == 0


def plain(metrics):
    kind, text = metrics("text/plain")
    assert kind.startswith("text/plain; version=0.0.4")
    return text


def openmetrics_text(metrics):
    kind, text = metrics("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    return text


def samples(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value
            for family in families for s in family.samples
            if not s.name.endswith("_age_seconds") and s.name != "deltawire_lag_seconds"}


def test_both_formats_say_the_same(metrics):
    one = samples(parser.text_string_to_metric_families(plain(metrics)))
    # this parser is strict: names, units, order, buckets, the end mark
    two = samples(openmetrics_parser.text_string_to_metric_families(openmetrics_text(metrics)))
    assert one == two
    assert len(one) > 15


def test_openmetrics_is_refused_without_its_end(metrics):
    """The parser is strict."""
    text = openmetrics_text(metrics).replace("# EOF\n", "")
    with pytest.raises(ValueError):
        list(openmetrics_parser.text_string_to_metric_families(text))


def test_promtool(metrics):
    if not shutil.which("promtool"):
        pytest.skip("no promtool here; scripts/install-deps.sh test brings it")
    done = subprocess.run(["promtool", "check", "metrics"], input=plain(metrics),
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done


def test_every_metric_is_documented(metrics):
    document = (ROOT / "docs" / "OPERATIONS.md").read_text()
    names = re.findall(r"^# TYPE (\S+) ", plain(metrics), re.M)
    assert len(names) > 10
    missing = [n for n in names if not re.search(rf"`{n}[`{{]", document)]
    assert missing == []
