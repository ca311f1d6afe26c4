"""README.md and docs/ are true: their commands and Python blocks run in order, each document in
its own directory and HOME, and print what the document shows.

tests/docs/blocks.py describes how a document is read. S3 is the server that AWS_ENDPOINT_URL
names; its bucket `bucket` is empty when a document begins."""
import importlib.util
import os
import pathlib
import sys

import blocks
import pytest
from sessions import Python, Shell

ROOT = pathlib.Path(os.environ["DW_TEST_DIR"]).parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
run, left_out = [], []


@pytest.fixture(scope="session", autouse=True)
def count():
    """Writes how many blocks ran, and why others did not."""
    yield
    report = [f"{len(run)} blocks ran, {len(left_out)} are marked as not run:", *left_out]
    (ROOT / "build" / "docs-blocks.txt").write_text("\n".join(report) + "\n")


@pytest.fixture
def bucket():
    """s3://bucket, empty."""
    if "AWS_ENDPOINT_URL" not in os.environ:
        pytest.skip("no S3 server")
    import boto3
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    s3.create_bucket(Bucket="bucket")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        for thing in page.get("Contents", []):
            s3.delete_object(Bucket="bucket", Key=thing["Key"])


@pytest.fixture
def place(tmp_path):
    """A directory with the files of the repository that a document needs, and a HOME."""
    for name in ("root", "home", "tmp"):
        (tmp_path / name).mkdir()
    for name in ("build", "tests"):
        (tmp_path / "root" / name).symlink_to(ROOT / name)
    return tmp_path


def environment(place):
    kept = {name: value for name, value in os.environ.items()
            if name.startswith(("AWS_", "LC_", "LANG", "PYTHON", "OMP_"))}
    path = [ROOT / "build", pathlib.Path(sys.executable).parent, os.environ["PATH"]]
    return {**kept, "PATH": ":".join(map(str, path)), "HOME": str(place / "home"),
            "TMPDIR": str(place / "tmp")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_document(document, place, request):
    name, text = document.relative_to(ROOT), document.read_text()
    found = blocks.find(text)
    visible = [block for block in found if not block.hidden]
    left_out.extend(f"{name}:{b.line}: {b.not_run}" for b in visible if b.not_run)
    found = [block for block in found if not block.not_run]
    if not found:
        return
    if any("s3://bucket" in block.text for block in found):
        request.getfixturevalue("bucket")
    for module in blocks.imports(found):
        if not importlib.util.find_spec(module):
            pytest.skip(f"no {module}")
    sessions = {}
    try:
        for block in found:
            if block.kind not in sessions:
                where = (place / "root", environment(place))
                sessions[block.kind] = Python(*where) if block.kind == "python" else \
                    Shell(place, *where)
            sessions[block.kind].run(name, block)
            if not block.hidden:
                run.append(block)
    finally:
        for session in sessions.values():
            session.end()
