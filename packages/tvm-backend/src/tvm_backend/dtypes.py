"""Names of torch dtypes in TVM."""

from __future__ import annotations

import torch

#: TVM's names of the dtypes that it supports on the CPU.
DTYPES = {
    torch.float32: "float32", torch.float64: "float64", torch.float16: "float16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8",
    torch.uint8: "uint8", torch.bool: "bool",
}  # fmt: skip
