#!/usr/bin/env python3
# labels: slow
"""Every option that a file under deploy/ gives to the command is one that the verb has."""
import os
import re
import subprocess

from lib import DEPLOY, Check, documents

check = Check()
helps = {}


def has(verb, option):
    if verb not in helps:
        helps[verb] = subprocess.run([os.environ["DELTAWIRE"], verb, "--help"],
                                     capture_output=True, text=True).stdout
    return re.search(r"(?<![\w-])" + re.escape(option) + r"(?![\w-])", helps[verb])


def ask(where, verb, text):
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
    for option in options:
        check.that(has(verb, option), f"{where}: deltawire {verb} has no {option}")
    return len(options)


def units():
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        verb = re.fullmatch(r"deltawire-(.*)@", path.stem).group(1)
        line = re.search(r"^ExecStart=deltawire (.*)", path.read_text(), re.M).group(1)
        check.that(line.startswith(verb + " "), f"{path.name} runs {line}")
        ask(path.name, verb, line)
        env = path.parent / "examples" / f"{verb}-NAME.env"
        ask(env.name, verb, env.read_text())
        for variable in re.findall(r"^#?([A-Z][A-Z0-9_]*)=", env.read_text(), re.M):
            check.that(re.match("AWS_|HF_", variable) or
                       re.search(r"\$\{?" + variable + r"\b", line),
                       f"{env.name}: {path.name} does not read {variable}")
        for path in sorted((path.parent / "examples").glob("*.conf")):
            text = path.read_text()
            if f"deltawire-{verb}@" in text:
                ask(path.name, verb, " ".join(re.findall(r'^Environment="(.*)"', text, re.M)))
                for variable in re.findall(r'^Environment="?([A-Z]+)=', text, re.M):
                    check.that(re.search(r"\$\{?" + variable + r"\b", line),
                               f"{path.name}: deltawire-{verb}@ does not read {variable}")


def commands(node, key):
    """The lists under KEY, anywhere below NODE."""
    for value in node if isinstance(node, list) else node.values() if isinstance(node, dict) else []:
        yield from commands(value, key)
    if isinstance(node, dict) and isinstance(node.get(key), list):
        yield node[key]


def manifests():
    for path, key in ((DEPLOY / "kubernetes/sidecar.yaml", "args"),
                      (DEPLOY / "containers/compose.yaml", "command")):
        found = [c for d in documents(path) for c in commands(d, key) if re.match("[a-z]", c[0])]
        check.that(found, f"{path.name}: no commands")
        for words in found:
            ask(path.name, words[0], " ".join(words[1:]))


def scripts():
    for path in sorted((DEPLOY / "containers").glob("**/*")):
        if path.suffix in (".Dockerfile", ".sh"):
            text = re.sub(r"\\\n#?", " ", path.read_text())
            for verb, rest in re.findall(r"deltawire(?:-agent|-trainer)? (\w[\w-]+) (.*)", text):
                ask(path.name, verb, rest)


units()
manifests()
scripts()
check.end()
