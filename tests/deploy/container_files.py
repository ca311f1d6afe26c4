#!/usr/bin/env python3
# labels: slow
"""The container files: rules that keep images small, unprivileged and repeatable."""
import functools
import os
import pathlib
import re
import shutil
import subprocess

from lib import DEPLOY, TREE, Check, container_files, yaml

check = Check()


def instructions(path):
    """(WORD, rest) of each, with lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.M)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def check_file(path):
    steps = list(instructions(path))
    stages = [i for i, (word, _) in enumerate(steps) if word == "FROM"]
    last = steps[stages[-1]:]
    for word, rest in steps:
        if word == "FROM":
            check.that(re.match(r"debian:12-slim( AS \w+)?$", rest), f"{path.name}: FROM {rest}")
        if word == "RUN" and "apt-get install" in rest:
            check.that("apt-get update" in rest and "--no-install-recommends" in rest and
                       "rm -rf /var/lib/apt/lists/*" in rest, f"{path.name}: {rest}")
        if word in ("ENTRYPOINT", "CMD"):
            check.that(rest.startswith("["), f"{path.name}: {word} goes through a shell")
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                check.that((TREE / source).exists(), f"{path.name}: there is no {source}")
        check.that(word not in ("ADD", "VOLUME", "MAINTAINER"), f"{path.name}: {word}")
    users = [rest for word, rest in last if word == "USER"]
    check.that(users and re.fullmatch(r"[1-9]\d+:[1-9]\d+", users[-1]),
               f"{path.name}: does not end as a numbered user other than root")
    return [s for s in steps[:stages[-1]]], last


def packages(last):
    text = " ".join(rest for word, rest in last if word == "RUN" and "apt-get install" in rest)
    return set(re.findall(r"(?<= )(?!-)[a-z0-9][a-z0-9.+-]+(?= |$)",
                          text.split("--no-install-recommends", 1)[1].split("&&")[0]))


@functools.lru_cache(maxsize=None)  # dpkg takes its time
def owners(library):
    file = f"/lib/{os.uname().machine}-linux-gnu/{library}"
    said = subprocess.run(["dpkg", "-S", "*" + file], capture_output=True, text=True)
    return {line.split(":")[0] for line in said.stdout.splitlines() if line.endswith(file)}


def needed_packages(command):
    """Debian's packages of the libraries that COMMAND is linked with; None elsewhere."""
    with open("/etc/os-release") as f:
        release = f.read()
    if "VERSION_ID=\"12\"" not in release or not shutil.which("readelf") or \
            os.environ.get("DW_SANITIZE"):
        return None
    text = subprocess.run(["readelf", "-d", command], capture_output=True, text=True,
                          check=True).stdout
    found = set().union(*map(owners, re.findall(r"\(NEEDED\).*\[(.*)\]", text)))
    return found - {"libc6"}


builds, runs = {}, {}
for image, path in container_files().items():
    builds[image], runs[image] = check_file(path)
check.that(set(builds) == {"deltawire-agent", "deltawire-trainer", "deltawire-spaces"},
           f"container files of {set(builds)}")
check.that(len({str(b) for b in builds.values()}) == 1, "the build stages differ")

needed = needed_packages(os.environ["DELTAWIRE"])
if needed is None:
    print("not asked: which packages the command needs (known on Debian 12 alone)")
else:
    check.that(len(needed) > 3, f"the command needs {needed}")
    for image, run in runs.items():
        check.that(needed <= packages(run), f"{image} lacks {needed - packages(run)}")

# it listens on the port that the Hub opens
text = (DEPLOY / "containers/spaces/README.md").read_text()
front = yaml.safe_load(text.split("---\n")[1])
start = (DEPLOY / "containers/spaces/start.sh").read_text()
check.that(front["sdk"] == "docker" and f"0.0.0.0:{front['app_port']} " in start,
           "spaces/README.md and start.sh differ in the port")
check.that(("EXPOSE", str(front["app_port"])) in runs["deltawire-spaces"], "EXPOSE of a Space")
check.that(("USER", "1000:1000") in runs["deltawire-spaces"], "a Space runs as user 1000")

if shutil.which("shellcheck"):
    for script in sorted(DEPLOY.rglob("*.sh")):
        said = subprocess.run(["shellcheck", script], capture_output=True, text=True)
        check.that(said.returncode == 0, said.stdout)
else:
    print("not asked: shellcheck is not installed")
check.end()
