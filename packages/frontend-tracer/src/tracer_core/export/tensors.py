"""Tensors as a member of a package, in the format of safetensors: a length, a table, the bytes.

Any tool that reads safetensors reads the member once it is unzipped. Tied tensors are stored once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tracer_core.errors import StoredError
from tracer_core.storage.archive import Archive, Data
from tracer_core.torch_private import names

#: The members of a package that hold tensors.
WEIGHTS, CONSTANTS = "weights.safetensors", "constants.safetensors"

#: dtype -> its name in safetensors; the rest of the format does not depend on it.
_NAMES = {
    names.name(dtype): code
    for dtype, code in (
        ("float64", "F64"), ("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16"),
        ("int64", "I64"), ("int32", "I32"), ("int16", "I16"), ("int8", "I8"),
        ("uint64", "U64"), ("uint32", "U32"), ("uint16", "U16"), ("uint8", "U8"),
        ("bool", "BOOL"), ("complex64", "C64"),
        ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"),
    )
}  # fmt: skip


def can_hold(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor can be stored: it is dense, and of a dtype that safetensors has."""
    simple = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return simple and tensor.dtype in _NAMES and tensor.device.type != "meta"


def _bytes(tensor: torch.Tensor) -> memoryview:
    """Returns the memory of a dense tensor on the CPU."""
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def tensors_member(tensors: Mapping[str, torch.Tensor]) -> list[Data]:
    """Returns the parts of the member that holds these tensors."""
    table: dict[str, Any] = {}
    parts: list[Data] = []
    end = 0
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if dense.numel():
            parts.append(_bytes(dense))
        begin, end = end, end + dense.nbytes
        table[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    head = json.dumps(table).encode()
    head += b" " * (-(len(head) + 8) % 64)
    return [len(head).to_bytes(8, "little"), head, *parts]


def read_tensors(
    archive: Archive, member: str, rows: Sequence[dict[str, Any]], path: Any
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a member whose hash is right. rows: name, dtype, sizes, strides and
    device of each, in the order in which they are stored."""
    wanted = sum(math.prod(row["sizes"]) * dtype_of(row).itemsize for row in rows)
    if wanted > archive.size(member):  # before memory is asked for
        raise StoredError(f"{path}: {member} has fewer bytes than its manifest says")
    dense = {row["name"]: torch.empty(row["sizes"], dtype=dtype_of(row)) for row in rows}
    expected = tensors_member(dense)
    size, head = bytearray(expected[0]), bytearray(expected[1])
    parts = [memoryview(size), memoryview(head)]
    parts += [_bytes(tensor) for tensor in dense.values() if tensor.numel()]
    archive.read_into(member, parts)
    if [bytes(size), bytes(head)] != expected[:2]:
        raise StoredError(f"{path}: the table of {member} is not that of the manifest")
    return {row["name"]: with_layout(dense[row["name"]], row) for row in rows}


def dtype_of(row: dict[str, Any]) -> torch.dtype:
    """Returns the dtype of a row."""
    dtype: torch.dtype = getattr(torch, row["dtype"])
    return dtype


def with_layout(tensor: torch.Tensor, row: dict[str, Any]) -> torch.Tensor:
    """Returns a tensor with the device and strides of a row, in memory of its own."""
    strides = tuple(row["strides"])
    if tensor.stride() == strides and str(tensor.device) == row["device"]:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=row["device"])
    return result.copy_(tensor)


def row_of(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the facts of a stored tensor."""
    return {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sizes": list(tensor.shape),
        "strides": list(tensor.stride()),
        "device": str(tensor.device),
    }
