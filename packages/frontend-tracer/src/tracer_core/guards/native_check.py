"""The C helper of stamps: builds it once, tests its assumptions, and calls it.

In: lists of dictionaries, objects and tensors. Out: a `NativeCheck`, or None where there is no C compiler, an
unknown Python, or an assumption about memory layout does not hold. What always holds: every offset
that the helper reads at was confirmed by a test in this process before its first use.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tracer_core.options import env

_VERSION_OFFSET = 24  # PyDictObject: ob_refcnt, ob_type, ma_used, ma_version_tag
_TYPE_OFFSET = 8
_INLINE_DIMS = 5  # SizesAndStrides keeps this many sizes and strides inside TensorImpl
#: size_, 5 sizes, 5 strides, storage_offset_, numel_, dtype + device + flags, key_set_.
_METADATA_SIZE = 8 + 80 + 8 + 8 + 8 + 8


class _Stamp(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_dicts", "n_objects", "n_tensors")),
        *((name, ctypes.c_void_p) for name in (
            "dicts", "versions", "objects", "types", "tensors", "impls", "metadata")),
        *((name, ctypes.c_int64) for name in (
            "version_offset", "type_offset", "impl_offset", "metadata_offset", "metadata_size")),
    ]  # fmt: skip


@functools.cache
def _library() -> tuple[Any, int] | None:
    """(library, offset of sizes in TensorImpl), or None if the helper cannot be used here."""
    if sys.version_info >= (3, 13) or sys.implementation.name != "cpython" or sys.maxsize < 2**32:
        return None
    path = _build()
    if path is None:
        return None
    library = ctypes.PyDLL(str(path))
    library.stamp_holds.argtypes = library.stamp_take.argtypes = [ctypes.c_void_p]
    library.stamp_holds.restype, library.stamp_take.restype = ctypes.c_int, None
    offset = _metadata_offset()
    if offset is None or not _dicts_are_tagged():
        return None
    helper = (library, offset)
    return helper if _metadata_is_seen(helper) else None


def _build() -> Path | None:
    """The shared library, from the cache or from the C compiler."""
    source = Path(__file__).with_name("stamp_check.c")
    text = source.read_bytes()
    folder = Path(env().cache_dir) / "stamp"
    target = folder / f"stamp_{hashlib.sha256(text).hexdigest()[:16]}.so"
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


def _dicts_are_tagged() -> bool:
    probe: dict[str, Any] = {"a": 1}

    def tag() -> int:
        return ctypes.c_uint64.from_address(id(probe) + _VERSION_OFFSET).value

    seen = [tag()]
    if probe["a"] != 1 or tag() != seen[0]:
        return False
    for change in (
        lambda: probe.__setitem__("a", 2), lambda: probe.__setitem__("b", 3), lambda: probe.pop("b"),
        lambda: probe.update(c=1), lambda: probe.clear(),
    ):  # fmt: skip
        change()
        seen.append(tag())
    return len(set(seen)) == len(seen)


@functools.cache
def _impl_offset() -> int:
    """Where a Python tensor holds its TensorImpl*: right after PyObject_HEAD, or behind the flag of a
    MaybeOwned<Tensor> (a byte, so never an address) in older torch."""
    word = ctypes.c_uint64.from_address(id(torch.empty(0)) + 16).value
    return 16 if word > 1 << 16 else 24


def _impl(tensor: torch.Tensor) -> int:
    return ctypes.c_void_p.from_address(id(tensor) + _impl_offset()).value or 0


def _metadata_offset() -> int | None:
    """Where SizesAndStrides begins in TensorImpl: found by looking for a rare size."""
    probe = torch.empty(7, 1000003, device="meta")
    impl = _impl(probe)
    # A wrong offset must not be followed blindly: the pointer has to look like one.
    if impl % 8 or impl < 4096:
        return None
    words = (ctypes.c_int64 * 24).from_address(impl)
    for i in range(1, 16):
        if words[i] == 7 and words[i + 1] == 1000003 and words[i - 1] == 2:
            return (i - 1) * 8
    return None


def _metadata_is_seen(helper: tuple[Any, int]) -> bool:
    """Whether each change of metadata changes the compared bytes, and nothing else does."""
    base = torch.zeros(4, 6)
    others: list[torch.Tensor] = [
        torch.zeros(4, 6, dtype=torch.int32), torch.zeros(6, 4), torch.zeros(6, 4).t(), torch.zeros(24),
        torch.zeros(4, 6, device="meta"),
    ]  # fmt: skip
    pairs: list[tuple[torch.Tensor, torch.Tensor, bool]] = [(base, other, False) for other in others]
    pairs.append((base, torch.ones(4, 6), True))
    complex_one = torch.zeros(2, 2, dtype=torch.complex64)
    pairs.append((complex_one, complex_one.conj(), False))
    for first, second, same in pairs:
        offset = helper[1]
        bytes_of = [ctypes.string_at(_impl(t) + offset, _METADATA_SIZE) for t in (first, second)]
        if (bytes_of[0] == bytes_of[1]) is not same:
            return False
    # The very use: one tensor object whose metadata is exchanged in place.
    changed = torch.zeros(4, 6)
    check = NativeCheck(helper, [], [], [changed])
    if not check():
        return False
    changed.data = torch.zeros(4, 6, dtype=torch.float64)
    return not check()


class NativeCheck:
    """One stamp in C. Calling it says whether nothing changed. Keeps everything it looks at alive."""

    def __init__(
        self, helper: tuple[Any, int], dicts: list[Any], objects: list[Any], tensors: list[Any]
    ) -> None:
        library, offset = helper
        self._alive = (dicts, objects, tensors)
        self._arrays = [
            (ctypes.c_void_p * max(1, len(items)))(*map(id, items)) for items in (dicts, objects, tensors)
        ]
        self._versions = (ctypes.c_uint64 * max(1, len(dicts)))()
        self._types = (ctypes.c_void_p * max(1, len(objects)))()
        self._impls = (ctypes.c_void_p * max(1, len(tensors)))()
        self._metadata = ctypes.create_string_buffer(max(1, len(tensors) * _METADATA_SIZE))
        pointers = [
            ctypes.addressof(x)
            for x in (
                self._arrays[0],
                self._versions,
                self._arrays[1],
                self._types,
                self._arrays[2],
                self._impls,
                self._metadata,
            )
        ]
        self._stamp = _Stamp(len(dicts), len(objects), len(tensors), *pointers, _VERSION_OFFSET, _TYPE_OFFSET,
                             _impl_offset(), offset, _METADATA_SIZE)  # fmt: skip
        self._address = ctypes.addressof(self._stamp)
        self._holds = library.stamp_holds
        library.stamp_take(self._address)

    def __call__(self) -> bool:
        return bool(self._holds(self._address))

    def changed_dicts(self) -> list[int]:
        """ids of the dictionaries whose version moved."""
        return [
            id(one) for one, version in zip(self._alive[0], self._versions, strict=False)
            if ctypes.c_uint64.from_address(id(one) + _VERSION_OFFSET).value != version
        ]  # fmt: skip


def native_check(dicts: list[Any], objects: list[Any], tensors: list[Any]) -> NativeCheck | None:
    """A check in C, or None if the helper is missing or a tensor has too many dimensions for it."""
    helper = _library()
    if helper is None or any(t.dim() > _INLINE_DIMS for t in tensors):
        return None
    return NativeCheck(helper, list(dicts), list(objects), list(tensors))
