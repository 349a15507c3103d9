"""Finds the C++ compiler and the OpenMP library that torch has loaded.

The result is one frozen `Toolchain` with every flag that a build uses. Kernels share torch's own
libgomp (one thread pool in the process), and floating point keeps NaN, infinities, -0.0 and
denormals (no -ffast-math).
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import platform
from dataclasses import dataclass

import torch

from tracer_core.plugin_api import Command, CompilerMissingError, compilers, cpu_level

#: Tried in this order when CXX is not set.
CANDIDATES = ("g++", "clang++", "c++")

#: What each flag is for.
#: -fno-math-errno      libm calls need not set errno: sqrt, floor, rint become instructions.
#: -fno-trapping-math   no code reads the FP exception flags, as in torch's own build: needed to turn
#:                      branches into vector selects. Values, NaN and -0.0 included, do not change.
#: -fno-semantic-interposition, -fvisibility=hidden   calls inside the library are direct.
#: -fwrapv             integers wrap as in eager; without it an overflow lets the compiler assume
#:                      that whatever leads to it does not happen.
#: -ffp-contract=off   a product is rounded before it is added, as in eager, wherever it is computed;
#:                      the prelude's own functions say tc_fma (docs/decisions/0017-equal-bits.md).
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-w",
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """command: the compiler. kind: "gcc" or "clang". version: the first line of its version text.
    flags: for each compile step. link_flags: for the link step. isa: "avx512", "avx2" or "generic".
    cpu: digest of the processor's feature list (-march=native depends on it), or of a level. openmp_library: the
    libgomp that torch has loaded; None where there is none, and then kernels run on one thread."""

    command: Command
    kind: str
    version: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    isa: str
    cpu: str
    openmp_library: str | None

    def fingerprint(self) -> str:
        """Returns text that differs whenever the same source could give another binary."""
        library = os.path.basename(self.openmp_library or "")
        return "\n".join(
            (self.kind, self.version, *self.command.argv[1:], *self.flags, self.cpu, library)
        )


def find_compiler() -> Toolchain:
    """Returns the compiler to use: ``$CXX``, else the first of g++, clang++, c++ and ziglang that
    runs.

    Raises CompilerMissingError (stage "toolchain") naming the package to install. The result is
    cached per value of CXX and PATH."""
    return _find(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find(cxx: str, search_path: str) -> Toolchain:
    tried = []
    for command in compilers(cxx, CANDIDATES, "c++"):
        name = " ".join(command.argv)
        version = command.version()
        if version is not None:
            return _toolchain(command, version)
        tried.append(f"{name}: {'does not answer --version' if command.exists else 'not found'}")
    raise CompilerMissingError(
        "inductor",
        "toolchain",
        "no C++ compiler ("
        + "; ".join(tried)
        + "). Install one: `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora), "
        "`conda install gxx`, `pip install ziglang`; or set CXX to one.",
    )


def _toolchain(command: Command, version: str) -> Toolchain:
    kind = "clang" if "clang" in version else "gcc"
    isa, cpu = processor()
    library = openmp_library()
    level = cpu_level()
    if level is not None:
        march = [f"-march={level}"]
    else:
        march = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else ["-mcpu=native"]
    if isa == "avx512":
        march.append("-mprefer-vector-width=512")
    # clang compiles `parallel` to calls of LLVM's libomp, a second thread pool beside torch's
    # libgomp: with clang only the simd pragmas are active and kernels run on one thread.
    openmp = ["-fopenmp"] if kind == "gcc" and library else ["-fopenmp-simd"]
    # The library's path goes to the linker instead of -fopenmp, so that the one that torch has
    # loaded (found again by its soname at dlopen) is the only one in the process.
    link = [library] if kind == "gcc" and library else []
    # Clones of kernels for one call's constant sizes take a third of the compile time and run no
    # faster.
    clones = ["-fno-ipa-cp-clone"] if kind == "gcc" else []
    return Toolchain(
        command=command,
        kind=kind,
        version=version,
        flags=(*COMMON_FLAGS, *clones, *march, *openmp),
        link_flags=("-shared", *link, "-lm"),
        isa=isa,
        cpu=cpu,
        openmp_library=library if kind == "gcc" else None,
    )


_ISA_OF_LEVEL = {"x86-64-v3": "avx2", "x86-64-v4": "avx512"}


@functools.lru_cache(maxsize=1)
def processor() -> tuple[str, str]:
    """Returns (isa, digest of the processor's features or of the level in TRACER_CPU)."""
    level = cpu_level()
    if level is not None:
        return _ISA_OF_LEVEL.get(level, "generic"), _digest(level)
    features = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            wanted = ("flags", "Features", "model name", "cpu family", "model\t", "CPU ")
            features += "".join(sorted({line for line in file if line.startswith(wanted)}))
    except OSError:  # not Linux
        features += platform.processor()  # runs `uname` on some systems, so not where PATH decides
    capability = torch.backends.cpu.get_cpu_capability()
    isa = {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "generic")
    return isa, _digest(features)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def loaded_openmp_libraries() -> list[str]:
    """Returns the paths of all OpenMP runtimes mapped into this process (two are two thread pools)."""
    names = ("libgomp", "libomp", "libiomp")
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {
                line.split(None, 5)[5].strip() for line in file if "omp" in line and "/" in line
            }
    except OSError:
        return []
    return sorted(path for path in paths if os.path.basename(path).startswith(names))


def openmp_library() -> str | None:
    """Returns the libgomp that torch has loaded, else the one in its wheel, else None."""
    loaded = [path for path in loaded_openmp_libraries() if "libgomp" in os.path.basename(path)]
    in_torch = [path for path in loaded if f"{os.sep}torch" in path]
    if in_torch or loaded:
        return (in_torch or loaded)[0]
    root = os.path.dirname(torch.__file__)
    patterns = (
        os.path.join(root, "lib", "libgomp*.so*"),
        os.path.join(root + ".libs", "libgomp*.so*"),
    )
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), None)
