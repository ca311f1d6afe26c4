"""The documents name only files, functions and headings that exist."""
import functools
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ["DW_TEST_DIR"]).parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md",
             *sorted((ROOT / "docs").glob("**/*.md"))]
FOLDERS = "src|include|cli|python|bench|tests|scripts|examples|model|deploy|docs"
SOURCE = r"[\w./*-]+\.(?:c|h|inc|pml|py|pyi|sh|html)"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./*-]+)`")
FILE = re.compile(rf"`({SOURCE})`")
IDENTIFIER = re.compile(r"\b(?:dw_[a-z0-9_]+|DW_[A-Z0-9_]+)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PLACEHOLDER = re.compile(r"(?<![A-Za-z])(X|VERB|NAME|dw_noun\w*)(?![A-Za-z])")
STEP = re.compile(r"^\| *(\d+) *\| *`([^`]+)` *\| *`([^`]+)` *\|", re.M)


@functools.cache
def files():
    """All files of the repository, also untracked ones."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [str(path.relative_to(ROOT)) for folder in FOLDERS.split("|")
            for path in (ROOT / folder).glob("**/*") if path.is_file()]


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


def named(document, pattern):
    text = document.read_text()
    return sorted(name for name in set(pattern.findall(text)) if not PLACEHOLDER.search(name))


def each(*documents):
    return pytest.mark.parametrize("document", documents, ids=lambda p: str(p.relative_to(ROOT)))


@each(*DOCUMENTS)
def test_paths_exist(document):
    missing = [path for path in named(document, PATH) if not list(ROOT.glob(path))]
    assert missing == []


@each(*DOCUMENTS)
def test_source_files_exist(document):
    """A file that is named without its folder is somewhere in the repository."""
    known = {pathlib.PurePath(name).name for name in files()}
    missing = [name for name in named(document, FILE)
               if "*" not in name and pathlib.PurePath(name).name not in known]
    assert missing == []


@functools.cache
def identifiers():
    """All names in the sources that have the prefix of the library."""
    sources = [ROOT / name for name in files() if not name.startswith("docs/")
               and name.endswith((".c", ".h", ".inc", ".py", ".pyi", ".sh", ".txt"))]
    return set(IDENTIFIER.findall("\n".join(path.read_text(errors="replace") for path in sources)))


@each(*DOCUMENTS)
def test_identifiers_exist(document):
    missing = [name for name in named(document, IDENTIFIER) if name not in identifiers()]
    assert missing == []


@each(*DOCUMENTS)
def test_links_lead_somewhere(document):
    missing = []
    for target in named(document, LINK):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            missing.append(target)
    assert missing == []


def test_the_walks_of_the_design():
    """One publish and one follow: at most 15 steps each, no file twice, and each function
    exists."""
    section = re.search(r"^## 3 .*?(?=^## )", (ROOT / "docs" / "DESIGN.md").read_text(), re.M | re.S)
    walks = [STEP.findall(walk) for walk in re.split(r"^### ", section.group(0), flags=re.M)[1:3]]
    assert len(walks) == 2
    for walk in walks:
        assert [int(number) for number, _, _ in walk] == list(range(1, len(walk) + 1))
        assert 5 <= len(walk) <= 15
        visited = [file for _, file, _ in walk]
        assert len(set(visited)) == len(visited)
        for _, file, function in walk:
            source = (ROOT / file).read_text()
            assert re.search(rf"^[\w].*\b{function}\(", source, re.M), f"{file}: {function}"


def test_a_file_name_stands_in_one_folder():
    """The base name of a C file is unique: a header and its source are in one folder."""
    folders = {}
    for path in map(pathlib.PurePath, files()):
        if path.parts[0] in ("src", "cli", "bench", "python") and path.suffix in (".c", ".h"):
            folders.setdefault(path.stem, set()).add(str(path.parent))
    assert {stem: sorted(found) for stem, found in folders.items() if len(found) > 1} == {}


def test_sizes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
    terms = re.findall(r"^\| ?\*\*(\w+)\*\*", (ROOT / "docs" / "GLOSSARY.md").read_text(), re.M)
    assert len(terms) <= 25 and len(set(terms)) == len(terms)
