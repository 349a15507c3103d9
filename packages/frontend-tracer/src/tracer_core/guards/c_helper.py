"""The C files beside this one: built once, kept in the cache folder, called through ctypes.

In: the name of a file and of its function. Out: the function, or None where there is no C compiler (or it is not
wanted): what it decides is then decided in Python, with the same meaning. What always holds: a library is named by what
its source says, and appears in the cache whole or not at all.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tracer_core.options import env


@functools.cache
def _function(source: str, name: str) -> Any:
    path = build(source)
    return None if path is None else getattr(ctypes.PyDLL(str(path)), name)


def helper(source: str, name: str, arguments: list[Any]) -> Any:
    """A function of one of the C files here that returns an int, or None if it is missing or not wanted
    (TRACER_PYTHON_GUARDS=1)."""
    function = None if env().python_guards else _function(source, name)
    if function is not None:
        function.argtypes, function.restype = arguments, ctypes.c_int
    return function


def build(name: str) -> Path | None:
    """The shared library of a C file, from the cache or from the C compiler."""
    source = Path(__file__).with_name(f"{name}.c")
    text = source.read_bytes()
    folder = Path(env().cache_dir) / "stamp"
    target = folder / f"{name}_{hashlib.sha256(text).hexdigest()[:16]}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            temporary = file.name
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", temporary, str(source)], check=True,
                       capture_output=True, timeout=60)  # fmt: skip
        os.replace(temporary, target)
    except (OSError, subprocess.SubprocessError):
        return None  # the Python form of the check has the same meaning
    return target
