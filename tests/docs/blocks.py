"""Finds the command and Python blocks of a document, and compares their output.

In a document

    ```console          commands after `$ `, each with the output it shows, if any
    ```python           code; all Python of a document runs in one interpreter

and, invisible to readers,

    <!-- console        a block as above that prepares or checks something; so is
    ...                 `<!-- python`
    -->
    <!-- not run: REASON -->    the next block is left out

A command with output in the document must print these lines; `...` means any number of lines. A
command without may print anything. See `same_line` for what may differ.
"""
import re
from dataclasses import dataclass

FENCE = re.compile(r"```(\w*)\s*$")
HIDDEN = re.compile(r"<!-- (console|python)\s*$")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")
COMMAND = re.compile(r"\s*(\$ |(sudo )?(deltawire(?= [a-z])|make|cmake|pip|python3?|vllm|curl|docker) "
                     r"|(build|scripts)/\S+ |[A-Z_]+=\S+ [a-z])")

# Text that differs between runs and machines, and its placeholder.
VARYING = [
    (re.compile(r"\b[0-9a-f]{12,}\b"), "HASH"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms)\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? [kMG]B(?= of model a second)"), "RATE"),
    (re.compile(r"(/[\w.-]+)*/tmp\.\w+"), "DIRECTORY"),
]


@dataclass
class Block:
    kind: str               # console, python
    line: int               # of its first line of text, from 1
    text: str
    hidden: bool = False
    not_run: str = ""       # the reason


@dataclass
class Command:
    line: int
    text: str
    shown: list             # of lines


class Fault(Exception):
    """A document that is wrong."""


def find(text):
    """The blocks of a document, in order."""
    found, lines, reason, at = [], text.splitlines(), "", 0
    while at < len(lines):
        line = lines[at]
        at += 1
        fence, hidden, mark = FENCE.match(line), HIDDEN.match(line), NOT_RUN.match(line)
        if mark:
            if reason:
                raise Fault(f"line {at}: a second mark before one block")
            reason = mark[1]
        elif fence or hidden:
            kind, first = (fence or hidden)[1], at
            end = "```" if fence else "-->"
            while at < len(lines) and lines[at].rstrip() != end:
                at += 1
            if at == len(lines):
                raise Fault(f"line {first}: the block does not end")
            body = lines[first:at]
            at += 1
            if kind in ("console", "python"):
                found.append(Block(kind, first + 1, "\n".join(body) + "\n", bool(hidden), reason))
                reason = ""
            elif body and kind == "" and COMMAND.match(body[0]):
                raise Fault(f"line {first}: commands in a block that is not marked as console")
    if reason:
        raise Fault(f"no block follows the mark 'not run: {reason}'")
    return found


def imports(found):
    """The packages that the Python blocks need and that need not be installed."""
    text = "".join(block.text for block in found if block.kind == "python")
    return [name for name in ("torch", "transformers", "accelerate", "numpy")
            if re.search(rf"^(import|from) (.*, )?{name}\b", text, re.M)]


def commands(block):
    """The commands of a console block, each with the output that is shown after it."""
    found, lines, at = [], block.text.splitlines(), 0
    while at < len(lines):
        line, number = lines[at], block.line + at
        at += 1
        if line.startswith("$ "):
            text = line[2:]
            while text.endswith("\\") and at < len(lines):
                text += "\n" + lines[at]
                at += 1
            found.append(Command(number, text, []))
        elif found:
            found[-1].shown.append(line)
        else:
            raise Fault(f"line {number}: a console block begins with a command, after '$ '")
    return found


def plain(line):
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line.rstrip()


def same_line(shown, printed):
    return plain(shown) == plain(printed)


def same_output(shown, printed):
    """Whether these lines were printed."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(same_output(shown[1:], printed[n:]) for n in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and \
        same_output(shown[1:], printed[1:])
