"""The command: `deltawire`, or `python -m deltawire`."""
import os
import pathlib
import sys

COMMAND = pathlib.Path(__file__).with_name("bin") / "deltawire"


def main() -> None:
    os.execv(COMMAND, ["deltawire", *sys.argv[1:]])


if __name__ == "__main__":
    main()
