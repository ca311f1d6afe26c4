"""The runner of documents finds faults."""
import os
import textwrap

import pytest
from blocks import Block, Fault, commands, find, same_output
from sessions import Python, Shell


def console(text):
    return Block("console", 1, textwrap.dedent(text))


@pytest.fixture
def shell(tmp_path):
    session = Shell(tmp_path, tmp_path, dict(os.environ))
    yield lambda text: session.run("doc.md", console(text))
    session.end()


def test_blocks_and_marks():
    text = textwrap.dedent("""\
        <!-- python
        x = 1
        -->
        ```python
        y = x
        ```
        <!-- not run: needs a GPU -->
        ```console
        $ train
        ```
        ```
         a drawing
        ```
        ```json
        {}
        ```
        """)
    first, second, third = find(text)
    assert (first.kind, first.line, first.text, first.hidden) == ("python", 2, "x = 1\n", True)
    assert (second.kind, second.line, second.hidden) == ("python", 5, False)
    assert (third.kind, third.not_run) == ("console", "needs a GPU")


@pytest.mark.parametrize("text, error", [
    ("```\ndeltawire log URL\n```\n", "not marked as console"),
    ("```\nFOO=1 make demo\n```\n", "not marked as console"),
    ("```python\nx = 1\n", "does not end"),
    ("<!-- not run: why -->\n", "no block follows"),
    ("<!-- not run: a -->\n<!-- not run: b -->\n```python\n```\n", "second mark"),
])
def test_documents_that_cannot_be_read(text, error):
    with pytest.raises(Fault, match=error):
        find(text)


def test_commands():
    first, second = commands(console("""\
        $ echo a \\
              b
        a b
        $ true  # nothing
        """))
    assert (first.line, first.text, first.shown) == (1, "echo a \\\n      b", ["a b"])
    assert (second.line, second.shown) == (4, [])
    with pytest.raises(Fault, match="begins with a command"):
        commands(console("output\n"))


@pytest.mark.parametrize("shown, printed, same", [
    ("state 084d9384068773b6", "state ffffffffffffffff", True),
    ("in 0.012 s", "in 13 ms", True),
    ("/tmp/tmp.abc/s", "/var/x/tmp.9Yz/s", True),
    ("157,546 bytes", "157,547 bytes", False),
    ("a\n...\nb", "a\nx\ny\nb", True),
    ("a\n...", "a", True),
    ("a\n...\nb", "a\nx", False),
    ("a", "a\nb", False),
    ("a\nb", "a", False),
])
def test_what_may_differ(shown, printed, same):
    assert same_output(shown.splitlines(), printed.splitlines()) == same


def test_a_shell_keeps_what_commands_set(shell):
    shell("""\
        $ export X=1; cd /
        $ echo $X $PWD
        1 /
        $ false; echo "exit code $?"
        exit code 1
        $ sleep 600 &
        """)


@pytest.mark.parametrize("text, error", [
    ("$ echo b\na\n", "shows\na\nand it prints\nb"),
    ("$ echo said; exit_code() { return 3; }; exit_code\n", "exit status 3\nsaid"),
    ("$ exit 0\n", "ends the session"),
])
def test_commands_that_fail(shell, text, error):
    with pytest.raises(Fault, match=error):
        shell(text)


def test_commands_that_do_not_end(shell, tmp_path):
    command = tmp_path / "deltawire"
    command.write_text("#!/bin/sh\n[ \"$2\" != bad ] || { echo no >&2; exit 1; }\n"
                       "echo serves\ntrap 'exit 0' TERM\nwhile sleep 0.1; do :; done\n")
    command.chmod(0o755)
    shell("""\
        $ PATH=$PWD:$PATH
        $ deltawire follow x    # until it is stopped
        serves
        """)
    with pytest.raises(Fault, match="ends by itself|exit status 1"):
        shell("$ deltawire follow bad\n")


def test_python(tmp_path):
    session = Python(tmp_path, dict(os.environ))
    session.run("doc.md", Block("python", 1, "x = 1\n"))
    session.run("doc.md", Block("python", 5, "assert x == 1\n"))
    with pytest.raises(Fault, match='(?s)doc.md:9.*"doc.md", line 10, in.*ZeroDivisionError'):
        session.run("doc.md", Block("python", 9, "x = 2\nx / 0\n"))
    session.end()
