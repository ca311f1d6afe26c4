"""Builds the package: CMake makes the library, and the extension is linked with it.

What stands in pyproject.toml is not repeated here."""
import os
import pathlib
import re
import shlex
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
LIBRARIES = "jansson libzstd libxxhash libcrypto libcurl expat libmicrohttpd zlib".split()
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Werror".split()


def version():
    text = (ROOT / "include/deltawire/version.h").read_text()
    return re.search(r'DW_VERSION_STRING "(.*)"', text)[1]


class BuildWithLibrary(build_ext):
    def run(self):
        library = pathlib.Path(self.build_temp).resolve() / "library"
        subprocess.run(["cmake", "-S", ROOT, "-B", library, "-DDW_BUILD_TESTS=OFF",
                        "-DDW_BUILD_PROGRAMS=OFF"], check=True)
        jobs = os.environ.get("JOBS", str(os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", library, "-j", jobs,
                        "--target", "deltawire_static"], check=True)
        flags = subprocess.run(["pkg-config", "--libs", *LIBRARIES], check=True,
                               capture_output=True, text=True).stdout
        for extension in self.extensions:
            extension.extra_objects = [str(library / "libdeltawire.a")]
            extension.depends += extension.extra_objects
            extension.extra_link_args += shlex.split(flags)
        super().run()


# Python's own headers are not held to our warnings.
python_headers = [f"-isystem{path}" for path in {sysconfig.get_path("include"),
                                                 sysconfig.get_path("platinclude")}]
core = Extension(
    "deltawire._core",
    sources=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("python/src/*.c")),
    depends=[str(path.relative_to(ROOT))
             for folder in ("python/src", "include/deltawire")
             for path in (ROOT / folder).glob("*.h")],
    include_dirs=["include"],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_POSIX_C_SOURCE", "200809L"),
                   ("_DEFAULT_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", *WARNINGS, *python_headers],
    extra_link_args=["-Wl,--exclude-libs,ALL", "-pthread"],
    py_limited_api=True,
)

# Not under build/, which is CMake's own.
setup(version=version(), ext_modules=[core], cmdclass={"build_ext": BuildWithLibrary},
      options={"build": {"build_base": "build-python"},
               "bdist_wheel": {"py_limited_api": "cp311"}})
