#!/usr/bin/env python3
"""Sums up JUnit files of ctest or pytest.

    junit.py failed JUNIT-FILE
    junit.py sum JUNIT-FILE SECOND-FILE FAILURES-FILE FLAKY-FILE

`failed` prints the names of the failed tests, a line each. `sum` prints 'PASSED FAILED
SKIPPED' on stdout, and on stderr the failed and skipped tests with the end of their output.
SECOND-FILE, if it exists, is from another run of those that failed: a test that passed
there has passed, and its name is appended to FLAKY-FILE. The failed tests are appended to
FAILURES-FILE, with less of their output.
"""
import os
import sys
import xml.etree.ElementTree as xml


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skip = case.find("skipped")
    if skip is None:
        return "passed"
    # ctest also reports a test as skipped if its program is missing.
    by_ctest = case.get("status") is not None
    meant = skip.get("message", "").startswith("SKIP_")
    return "failed" if by_ctest and not meant else "skipped"


def name(case):
    # pytest's class names the file, ctest's repeats the name
    return ".".join(dict.fromkeys((case.get("classname"), case.get("name"))))


def last_lines(case, n):
    said = [case.findtext(tag) or "" for tag in ("failure", "error", "skipped", "system-out")]
    return [line[:300] for line in "\n".join(said).strip().splitlines()[-n:]]


def show(result, case, lines, file):
    print(f"   {result}: {name(case)}", file=file)
    for line in last_lines(case, lines):
        print(f"   | {line}", file=file)


def outcomes(path):
    """The worst outcome of each name: pytest lists an error at the end of a test separately."""
    found = {}
    for case in xml.parse(path).iter("testcase"):
        if found.get(name(case)) != "failed":
            found[name(case)] = outcome(case)
    return found


def sum_up(first, second, failures_file, flaky_file):
    again = outcomes(second) if os.path.exists(second) else {}
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    with open(failures_file, "a", encoding="utf-8") as failures, \
            open(flaky_file, "a", encoding="utf-8") as flaky:
        for case in xml.parse(first).iter("testcase"):
            result = outcome(case)
            if result == "failed" and again.get(name(case)) == "passed":
                result = "passed"
                print(name(case), file=flaky)
                show("failed once, passed alone", case, 25, sys.stderr)
            counts[result] += 1
            if result == "failed":
                show(result, case, 25, sys.stderr)
                show(result, case, 12, failures)
            elif result == "skipped":
                show(result, case, 1, sys.stderr)
    print(*counts.values())


if sys.argv[1] == "failed":
    for test, result in outcomes(sys.argv[2]).items():
        if result == "failed":
            print(test)
else:
    sum_up(*sys.argv[2:])
