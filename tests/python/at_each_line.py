"""Interrupts a call at each line of the package in turn: the first two times that it is run."""
import collections
import dis
import functools
import pathlib
import sys

import deltawire

PACKAGE = str(pathlib.Path(deltawire.__file__).parent)


@functools.cache
def out_of_reach(code):
    """Places where Python calls a trace function, but never the handler of a signal: where CODE
    leaves a `with`, before the call of __exit__, and at a `try`, which does nothing by itself. What
    is raised there passes by the __exit__ of the `with` around it."""
    steps = list(dis.get_instructions(code))
    places = {step.offset for step in steps if step.opname == "NOP"}
    for i, step in enumerate(steps):
        next_ones = [(s.opname, s.argval) for s in steps[i:i + 6]
                     if s.opname not in ("SWAP", "PRECALL")]
        if next_ones[:4] == [("LOAD_CONST", None)] * 3 + [("CALL", 2)]:
            places.add(step.offset)
    return places


def is_interrupted(n, call, file=""):
    """Raises KeyboardInterrupt in CALL before the N-th line of the package that it runs, or of
    files whose names end with FILE. False if it has fewer lines: then it has run."""
    count, visits = 0, collections.Counter()

    def trace(frame, event, _):
        nonlocal count
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        if (event == "line" and code.co_filename.endswith(file)
                and frame.f_lasti not in out_of_reach(code)):
            visits[code, frame.f_lineno] += 1
            count += visits[code, frame.f_lineno] <= 2
            if count == n:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert count == n
        return True
    finally:
        sys.settrace(before)
    assert count < n
    return False


def at_each_line(call, check, least, before=lambda: None, file=""):
    """Interrupts CALL at each of its lines in turn, and then not at all, between BEFORE and
    CHECK."""
    n, goes_on = 0, True
    while goes_on:
        n += 1
        before()
        goes_on = is_interrupted(n, call, file)
        check()
    assert n > least, "there was nothing to interrupt"
