"""Builds the package: CMake makes the library and the command; the extension is linked with
the library. What stands in pyproject.toml is not repeated here."""
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
TOOLS = {"cmake": "cmake", "pkg-config": "pkg-config", "gcc": "gcc"}
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Werror".split()


def version():
    text = (ROOT / "include/deltawire/base.h").read_text()
    return re.search(r'DW_VERSION_STRING "(.*)"', text)[1]


def missing():
    """What the build needs and cannot find, as (name, Debian package)."""
    lacking = [pair for pair in TOOLS.items() if not shutil.which(pair[0])]
    if not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists():
        lacking.append(("Python's headers", "python3-dev"))
    if "pkg-config" in dict(lacking):
        return lacking
    return lacking + [pair for pair in LIBRARIES.items()
                    if subprocess.run(["pkg-config", "--exists", pair[0]]).returncode]


class BuildWithLibrary(build_ext):
    def run(self):
        if lacking := missing():
            raise SystemExit(f"deltawire needs {', '.join(name for name, _ in lacking)}, which "
                             "this machine lacks: apt-get install "
                             + " ".join(package for _, package in lacking))
        library = pathlib.Path(self.build_temp).resolve() / "library"
        subprocess.run(["cmake", "-S", ROOT, "-B", library, "-DDW_BUILD_TESTS=OFF",
                        "-DDW_BUILD_EXAMPLES=OFF"], check=True)
        jobs = os.environ.get("JOBS", str(os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", library, "-j", jobs,
                        "--target", "deltawire_static", "deltawire"], check=True)
        flags = subprocess.run(["pkg-config", "--libs", *LIBRARIES], check=True,
                               capture_output=True, text=True).stdout
        for extension in self.extensions:
            extension.extra_objects = [str(library / "libdeltawire.a")]
            extension.depends += extension.extra_objects
            extension.extra_link_args += shlex.split(flags)
        super().run()
        self.install_command(library / "deltawire")

    def install_command(self, built):
        """Beside the extension, for deltawire/__main__.py."""
        command = pathlib.Path(self.get_ext_fullpath("deltawire._core")).parent / "bin/deltawire"
        command.parent.mkdir(exist_ok=True)
        subprocess.run(["strip", "-o", command, built], check=True)
        command.chmod(0o755)


# Python's own headers are not held to our warnings.
python_headers = [f"-isystem{path}" for path in {sysconfig.get_path("include"),
                                                 sysconfig.get_path("platinclude")}]
core = Extension(
    "deltawire._core",
    sources=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("python/src/*.c")),
    depends=[str(path.relative_to(ROOT))
             for folder in ("python/src", "include/deltawire")
             for path in (ROOT / folder).glob("*.h")],
    include_dirs=["include", "src"],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_POSIX_C_SOURCE", "200809L"),
                   ("_DEFAULT_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", *WARNINGS, *python_headers],
    extra_link_args=["-Wl,--exclude-libs,ALL", "-pthread", "-ldl", "-lm"],
    py_limited_api=True,
)

# Not under build/, which is CMake's own.
setup(version=version(), ext_modules=[core], cmdclass={"build_ext": BuildWithLibrary},
      options={"build": {"build_base": "build-python"},
               "bdist_wheel": {"py_limited_api": "cp311"}})
