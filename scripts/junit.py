#!/usr/bin/env python3
"""Sums up a JUnit file of ctest or pytest: prints 'PASSED FAILED SKIPPED' on stdout, and
on stderr the failed and skipped tests by name with the end of their output. Appends the
failed tests to a second file, with less of their output.

    junit.py JUNIT-FILE FAILURES-FILE
"""
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


def last_lines(case, n):
    said = [case.findtext(tag) or "" for tag in ("failure", "error", "skipped", "system-out")]
    return "\n".join(said).strip().splitlines()[-n:]


def show(result, case, lines, file):
    # pytest's class names the file, ctest's repeats the name
    names = dict.fromkeys((case.get("classname"), case.get("name")))
    print(f"   {result}: {'.'.join(names)}", file=file)
    for line in last_lines(case, lines):
        print(f"   | {line}", file=file)


counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
with open(sys.argv[2], "a", encoding="utf-8") as failures:
    for case in xml.parse(sys.argv[1]).iter("testcase"):
        result = outcome(case)
        counts[result] += 1
        if result == "failed":
            show(result, case, 25, sys.stderr)
            show(result, case, 12, failures)
        elif result == "skipped":
            show(result, case, 1, sys.stderr)
print(*counts.values())
