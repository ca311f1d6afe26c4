"""Builds the package: CMake makes the extension and the command, and installs them beside the
Python files. What stands in pyproject.toml is not repeated here."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
LIBRARIES = {  # and the Debian package of each
    "jansson": "libjansson-dev", "libzstd": "libzstd-dev", "libxxhash": "libxxhash-dev",
    "libcrypto": "libssl-dev", "libcurl": "libcurl4-openssl-dev", "expat": "libexpat1-dev",
    "libmicrohttpd": "libmicrohttpd-dev", "zlib": "zlib1g-dev"}
TOOLS = {"cmake": "cmake", "make": "make", "pkg-config": "pkg-config", "gcc": "gcc"}
HEADERS = os.environ.get("DW_PYTHON_INCLUDE") or sysconfig.get_path("include")


def version():
    text = (ROOT / "include/deltawire/base.h").read_text()
    return re.search(r'DW_VERSION_STRING "(.*)"', text)[1]


def missing():
    """What the build needs and cannot find, as (name, Debian package)."""
    lacking = [pair for pair in TOOLS.items() if not shutil.which(pair[0])]
    if not pathlib.Path(HEADERS, "Python.h").exists():
        lacking.append(("Python's headers", "python3-dev"))
    if "pkg-config" in dict(lacking):
        return lacking
    return lacking + [pair for pair in LIBRARIES.items()
                    if subprocess.run(["pkg-config", "--exists", pair[0]]).returncode]


class BuildWithCMake(build_ext):
    """CMAKE_ARGS in the environment adds to the arguments."""
    def run(self):
        if lacking := missing():
            raise SystemExit(f"deltawire needs {', '.join(name for name, _ in lacking)}, which "
                             "this machine lacks: apt-get install "
                             + " ".join(package for _, package in lacking))
        super().run()

    def build_extension(self, extension):
        build = pathlib.Path(self.build_temp).resolve() / "library"
        package = pathlib.Path(self.get_ext_fullpath(extension.name)).resolve().parent
        subprocess.run(["cmake", "-S", ROOT, "-B", build, "-DDW_BUILD_TESTS=OFF",
                        "-DDW_BUILD_EXAMPLES=OFF", f"-DDW_PYTHON_INCLUDE={HEADERS}",
                        *shlex.split(os.environ.get("CMAKE_ARGS", ""))], check=True)
        jobs = os.environ.get("JOBS", str(os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", "core", "deltawire"],
                       check=True)
        subprocess.run(["cmake", "--install", build, "--strip", "--component", "python",
                        "--prefix", package], check=True)


# Not under build/, which is CMake's own. The sources are listed in python/CMakeLists.txt.
setup(version=version(), cmdclass={"build_ext": BuildWithCMake},
      ext_modules=[Extension("deltawire._core", sources=[], py_limited_api=True)],
      options={"build": {"build_base": "build-python"},
               "bdist_wheel": {"py_limited_api": "cp311"}})
