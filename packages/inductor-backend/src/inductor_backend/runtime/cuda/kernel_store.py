"""Stores machine code of Triton kernels, one file each, loaded without Triton.

Triton's own cache needs ten milliseconds per kernel to compute a key from all that its compiler
reads, and half a second for the import. A file is found only for the same kernel, compute
capability, installation of Triton (sizes and times of its files) and environment settings of
Triton; a damaged file is ignored. The store is off where Triton is told to always compile, to dump
or override its files, or has been configured in Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from inductor_backend.runtime.cuda.compile_workers import set_in_python
from inductor_backend.runtime.cuda.triton_compile import Binary, Kernel
from tracer_core.plugin_api import CacheLocationError, Store, logger, note

#: Version of the file format and of the options that kernels are compiled with.
FORMAT = "triton kernel 04"

#: Settings that bypass Triton's cache.
_ASIDE = ("TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_DUMP", "TRITON_KERNEL_OVERRIDE",
          "TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND")  # fmt: skip

#: Prefixes of settings that change Triton's output, or where it is cached.
_SETTINGS = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "DISABLE_", "ENABLE_", "USE_")

#: The parts of Triton that machine code comes from.
_PARTS = ("_C", "backends/nvidia", "compiler", "language", "runtime")


def load(kernel: Kernel, capability: int, aligned: bool = True) -> Binary | None:
    """Returns the stored machine code of a kernel, or None. aligned: pointers are multiples of 16
    bytes. capability: 80, 90, ..."""
    folder = _store()
    if folder is None:
        return None
    data = folder.read(_name(kernel, capability, aligned))
    note("cache", "kernel %s: %s", kernel.name, "miss" if data is None else "hit")
    if data is None:
        return None
    size = int.from_bytes(data[:4], "little")
    return Binary(code=data[4 + size :], **json.loads(data[4 : 4 + size]))


def store(kernel: Kernel, capability: int, binary: Binary, aligned: bool = True) -> None:
    """Stores the kernel for other processes. If the file cannot be written the next process asks
    Triton."""
    folder = _store()
    if folder is None:
        return
    facts = asdict(binary)
    code = facts.pop("code")
    head = json.dumps(facts).encode()
    try:
        folder.write(
            _name(kernel, capability, aligned), len(head).to_bytes(4, "little") + head + code
        )
    except CacheLocationError as error:
        logger().info("kernel %s is not kept: %s", kernel.name, error)


def any_here() -> bool:
    """Returns whether there are kernels of this installation: then Triton may not be needed."""
    folder = _store()
    return folder is not None and not folder.inside(lambda folder: folder.is_empty())


def _name(kernel: Kernel, capability: int, aligned: bool) -> str:
    return f"{kernel.key()}-{capability}{'' if aligned else '-any'}"


def _store() -> Store | None:
    """Returns the store of this installation and these settings; None where the store is off."""
    if any(os.environ.get(name, "0") not in ("", "0") for name in _ASIDE):
        return None
    triton = _triton(sys.modules.get("triton", ""))
    if triton is None or ("triton.knobs" in sys.modules and set_in_python()):
        return None
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith(_SETTINGS))
    name = hashlib.sha256(repr((FORMAT, triton, settings)).encode()).hexdigest()[:24]
    return Store(f"triton-kernels-{name}", FORMAT)


@functools.cache
def _triton(module: object) -> str | None:
    """Returns a fingerprint of this installation of Triton; None where there is none. module: the
    imported one, or ""."""
    spec = None if module is None else importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    facts = []
    for part in _PARTS:
        for folder, folders, files in os.walk(root / part):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for name in sorted(files):
                state = os.stat(os.path.join(folder, name))
                facts.append((folder, name, state.st_size, state.st_mtime_ns))
    return hashlib.sha256(repr((sys.version_info[:2], facts)).encode()).hexdigest()
