"""The wheel: its contents, and that it works without other packages."""
import os
import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = list((ROOT / "build-python/dist").glob("*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="scripts/package.sh makes the wheel")


def test_one_wheel_for_all_versions_of_python(tmp_path):
    wheel = zipfile.ZipFile(WHEELS[0])
    assert WHEELS[0].name.split("-", 2)[2].startswith("cp311-abi3-linux_")
    sources = ROOT / "python/deltawire"
    assert {n for n in wheel.namelist() if ".dist-info/" not in n} == {
        "deltawire/_core.abi3.so", "deltawire/bin/deltawire", "deltawire/deltawire.1",
        "deltawire/py.typed"} | {
        f"deltawire/{path.relative_to(sources)}" for path in sources.rglob("*.py*")
        if path.suffix in (".py", ".pyi")}
    [points] = [n for n in wheel.namelist() if n.endswith("/entry_points.txt")]
    assert b"[vllm.general_plugins]\ndeltawire = deltawire.vllm:register" in wheel.read(points)
    library = wheel.extract("deltawire/_core.abi3.so", tmp_path)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], check=True,
                             capture_output=True, text=True).stdout.split()
    assert [s for s in symbols if s[0] not in "0123456789" and len(s) > 1] == ["PyInit__core"]


def test_the_plugin_of_vllm_imports_no_more_than_it_needs():
    """vLLM loads it in each of its processes, with any back end."""
    script = ("import sys, deltawire, deltawire.vllm\n"
              "assert not {'vllm', 'torch'} & set(sys.modules)\n"
              "assert deltawire.vllm.refusal('0.27.9').endswith('this is vLLM 0.27.9')\n"
              "assert deltawire.vllm.refusal('0.28.0') is None\n"
              "assert deltawire.vllm.refusal('1.0.dev1+g12ab') is None\n"
              "assert deltawire.vllm.refusal('dev') is None\n")
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_fresh_environment(tmp_path):
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh/bin/python"
    subprocess.run([python, "-I", "-m", "pip", "-q", "--disable-pip-version-check", "install",
                    "--no-index", WHEELS[0]], check=True)
    example = ROOT / "examples/python/publish_and_follow.py"
    out = subprocess.run([python, "-I", example, tmp_path / "stream"], check=True,
                         capture_output=True, text=True).stdout
    assert "exactly the trainer's" in out
    command = tmp_path / "fresh/bin/deltawire"
    for call in ([command], [python, "-I", "-m", "deltawire"]):
        log = subprocess.run([*call, "log", tmp_path / "stream"], check=True,
                             capture_output=True, text=True, env={"HOME": str(tmp_path)}).stdout
        assert log.count("\n") > 2
        refused = subprocess.run([*call, "log", tmp_path / "none"], capture_output=True,
                                 text=True, env={"HOME": str(tmp_path)})
        assert refused.returncode == 6 and "none" in refused.stderr


def test_later_versions_of_python(tmp_path):
    """The interpreters on the path, and those beside this one, as with pyenv."""
    found = [shutil.which(f"python3.{minor}") for minor in range(12, 20)]
    found += pathlib.Path(sys.base_prefix).parent.glob("3.1[2-9]*/bin/python3")
    ran = 0
    for i, python in enumerate(found):
        if not python or subprocess.run([python, "-V"], capture_output=True).returncode:
            continue
        out = subprocess.run(
            [python, "-X", "dev", ROOT / "examples/python/publish_and_follow.py",
             tmp_path / f"stream-{i}"], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "build-python/site")})
        assert "exactly the trainer's" in out.stdout and not out.stderr
        ran += 1
    if not ran:
        pytest.skip("there is none")


def test_a_library_that_is_missing_is_named(tmp_path):
    """One line, with the package to install."""
    lacking = tmp_path / "bin/pkg-config"
    lacking.parent.mkdir()
    lacking.write_text('#!/bin/sh\ncase "$*" in *libcurl*) exit 1 ;; esac\nexec '
                       f'{shutil.which("pkg-config")} "$@"\n')
    lacking.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-temp", tmp_path / "temp",
         "--build-lib", tmp_path / "lib"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{lacking.parent}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "deltawire needs libcurl, which this machine lacks: apt-get install "
        "libcurl4-openssl-dev")


def test_missing_headers_are_named(tmp_path):
    """Before anything is compiled: sysconfig names a directory without Python.h."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig\n"
        "real = sysconfig.get_path\n"
        "sysconfig.get_path = lambda name, *a, **k: "
        f"{str(tmp_path)!r} if name == 'include' else real(name, *a, **k)\n")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-temp", tmp_path / "temp",
         "--build-lib", tmp_path / "lib"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "deltawire needs Python's headers, which this machine lacks: apt-get install python3-dev")


@pytest.mark.parametrize("path", sorted((ROOT / "examples/python").glob("*.py")),
                         ids=lambda path: path.stem)
def test_examples(path, tmp_path):
    for library in ("torch", "transformers"):
        if f"import {library}\n" in path.read_text() or f"from {library} " in path.read_text():
            pytest.importorskip(library)
    subprocess.run([sys.executable, path, tmp_path / "stream"], check=True, timeout=300)
    shown = subprocess.run([sys.executable, path, "--help"], check=True, capture_output=True)
    assert b"usage: " in shown.stdout


def test_stubs_name_what_is_there():
    import ast

    import deltawire
    stub = ast.parse((ROOT / "python/deltawire/_core.pyi").read_text())
    missing = []
    for node in stub.body:
        name = getattr(node, "name", None)
        if name is None or name.startswith("_"):
            continue
        there = getattr(deltawire, name, None)
        members = [m.name for m in getattr(node, "body", [])
                   if isinstance(m, ast.FunctionDef)] + [
            m.target.id for m in getattr(node, "body", []) if isinstance(m, ast.AnnAssign)]
        if isinstance(node, ast.ClassDef) and not name == "Error":
            missing += [f"{name}.{m}" for m in members
                        if m not in ("__new__", "__buffer__") and not hasattr(there, m)]
        if there is None:
            missing.append(name)
    assert not missing
    named = {getattr(node, "name", None) for node in stub.body}
    assert {n for n in dir(deltawire._core) if not n.startswith("_")} <= named
