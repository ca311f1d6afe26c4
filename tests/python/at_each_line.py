"""Interrupts a call at each line of the package in turn: the first two times that it is run."""
import collections
import pathlib
import sys

import deltawire

PACKAGE = str(pathlib.Path(deltawire.__file__).parent)


def is_interrupted(n, call):
    """Raises KeyboardInterrupt in CALL before the N-th line of the package that it runs. False if it
    has fewer lines: then it has run."""
    count, visits = 0, collections.Counter()

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            visits[frame.f_code, frame.f_lineno] += 1
            count += visits[frame.f_code, frame.f_lineno] <= 2
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


def at_each_line(call, check, least, before=lambda: None):
    """Interrupts CALL at each of its lines in turn, and then not at all, between BEFORE and
    CHECK."""
    n, goes_on = 0, True
    while goes_on:
        n += 1
        before()
        goes_on = is_interrupted(n, call)
        check()
    assert n > least, "there was nothing to interrupt"
