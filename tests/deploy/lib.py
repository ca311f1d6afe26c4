"""Shared by the checks beside it: the tree, the files under deploy/, and how to fail."""
import pathlib
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = TREE / "deploy"

try:
    import yaml
except ImportError:
    print("skipped: no yaml module (Debian's package python3-yaml)")
    sys.exit(77)


def documents(path):
    with open(path) as f:
        return list(yaml.safe_load_all(f))


def container_files():
    """{image: path of its container file}"""
    return {"deltawire-" + path.stem: path
            for path in sorted((DEPLOY / "containers").glob("*.Dockerfile"))}


class Check:
    """Collects faults, so that one run reports all of them."""

    def __init__(self):
        self.wrong = []
        self.n_asked = 0

    def that(self, good, text):
        self.n_asked += 1
        if not good:
            self.wrong.append(text)
        return good

    def end(self):
        for text in self.wrong:
            print("wrong:", text)
        print(f"{self.n_asked} asked, {len(self.wrong)} wrong")
        sys.exit(1 if self.wrong or not self.n_asked else 0)
