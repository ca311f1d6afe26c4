#!/usr/bin/env python3
"""Sums up a JUnit file of ctest or pytest: prints 'PASSED FAILED SKIPPED' on stdout, and
on stderr the failed and skipped tests by name with the end of what they said."""
import sys
import xml.etree.ElementTree as xml


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skip = case.find("skipped")
    if skip is None:
        return "passed"
    # ctest calls a test whose program is missing skipped as well.
    by_ctest = case.get("status") is not None
    meant = skip.get("message", "").startswith("SKIP_")
    return "failed" if by_ctest and not meant else "skipped"


def last_lines(case, n):
    said = [case.findtext(tag) or "" for tag in ("failure", "error", "skipped", "system-out")]
    return "\n".join(said).strip().splitlines()[-n:]


counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
for case in xml.parse(sys.argv[1]).iter("testcase"):
    result = outcome(case)
    counts[result] += 1
    if result != "passed":
        # pytest's class names the file, ctest's says the name again
        names = dict.fromkeys((case.get("classname"), case.get("name")))
        print(f"   {result}: {'.'.join(names)}", file=sys.stderr)
        for line in last_lines(case, 25 if result == "failed" else 1):
            print(f"   | {line}", file=sys.stderr)
print(*counts.values())
