"""The weights of a native library: the tensors that its kernels read and that no input holds, one after
the other in one file, which the assembler includes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.size_source import ALIGNMENT
from inductor_backend.limits import MAX_LIBRARY_BYTES

#: The symbol at their first byte.
SYMBOL = "tc_weights"

#: Bytes that are copied to the file at once.
_PIECE = 1 << 24


@dataclass(slots=True)
class Weights:
    """offsets: storage -> where it starts. Memory that several share is kept once."""

    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0
    _offset_of: dict[tuple[int, int], int] = field(default_factory=dict)
    _parts: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Writes the file."""
        with path.open("wb") as file:
            for offset, flat in self._parts:
                file.write(bytes(offset - file.tell()))
                _write(file, flat)
            file.write(bytes(self.size - file.tell()))  # vectors may be read whole

    def add(self, storage: str, tensor: torch.Tensor, extent: int) -> None:
        """Adds a tensor. extent: elements from its first to its last."""
        # as they lie in memory, gaps included: kernels use the tensor's strides
        flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
        key = flat.data_ptr(), flat.nbytes
        if key not in self._offset_of:
            self._offset_of[key] = self.size
            self._parts.append((self.size, flat))
            self.size += -(-flat.nbytes // ALIGNMENT) * ALIGNMENT
        self.offsets[storage] = self._offset_of[key]


def weights_of(tensors: Mapping[str, tuple[torch.Tensor, int]]) -> Weights:
    """Lays out tensors. tensors: storage -> the tensor and its extent in elements."""
    weights = Weights()
    for storage, (tensor, extent) in tensors.items():
        weights.add(storage, tensor, extent)
    if weights.size > MAX_LIBRARY_BYTES:
        raise unsupported(
            "native library",
            f"weights of {weights.size:,} bytes: a library holds {MAX_LIBRARY_BYTES:,}",
        )
    return weights


def including(path: Path) -> str:
    """Returns the translation unit that includes the file, by its assembler."""
    included = f'.incbin "{_escaped(str(path))}"'
    lines = (
        ".section .rodata",
        f".balign {ALIGNMENT}",
        f".hidden {SYMBOL}",
        f".globl {SYMBOL}",
        f"{SYMBOL}:",
        included,
        ".previous",
    )
    return "asm(" + "\n".join(f'"{_escaped(line)}\\n"' for line in lines) + ");\n"


def _escaped(text: str) -> str:
    """Returns the inside of a string literal, of C and of the assembler."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _write(file: BinaryIO, flat: torch.Tensor) -> None:
    """Writes the bytes of a flat tensor of any dtype."""
    start, stop = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for at in range(start, stop, _PIECE):
        file.write(ctypes.string_at(at, min(_PIECE, stop - at)))
