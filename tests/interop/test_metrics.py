"""Prometheus' own tools read the agent's /metrics.

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

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("DW_AGENT_DRIVER", str(ROOT / "build" / "tests" / "agent_driver"))


@pytest.fixture(scope="module", params=["follower", "stream"])
def metrics(request):
    arguments = ["--stream"] if request.param == "stream" else []
    with subprocess.Popen([DRIVER, *arguments], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, encoding="utf-8") as process:
        url = process.stdout.readline().strip() + "metrics"

        def get():
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return answer.read().decode()
        yield get
        process.stdin.close()
        assert process.wait() == 0


def test_parser_reads_it(metrics):
    families = list(parser.text_string_to_metric_families(metrics()))
    assert sum(len(family.samples) for family in families) > 15


def test_promtool(metrics):
    if not shutil.which("promtool"):
        pytest.skip("no promtool here; scripts/install-deps.sh test brings it")
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics(),
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done


def test_every_metric_is_documented(metrics):
    document = (ROOT / "docs" / "OPERATIONS.md").read_text()
    names = re.findall(r"^# TYPE (\S+) ", metrics(), re.M)
    assert len(names) > 10
    missing = [n for n in names if not re.search(rf"`{n}[`{{]", document)]
    assert missing == []
