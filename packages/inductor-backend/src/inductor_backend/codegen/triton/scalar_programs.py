"""Writes scalar programs into a Triton kernel: score_mod and mask_mod of flex_attention, and what
combines two elements of an associative scan.

Where queries have 16 bits, division and tanh of scores are shorter approximations whose error (some
1e-7) is far below that of the scores; correctly rounded ones take longer than the products of a block.
What is computed from positions is exact: it may become an index or a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from inductor_backend.codegen.common.op_syntax import Spelling
from inductor_backend.codegen.common.op_table import TRITON
from inductor_backend.codegen.common.scalar_programs import FunctionWriter
from inductor_backend.codegen.triton.addressing import NARROW
from inductor_backend.codegen.triton.block_writer import asserted_index
from inductor_backend.codegen.triton.expressions import constant_source
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.values import Value, topological


def _quotient(value: Value, a: str, b: str) -> str:
    divisor = value.args[1]
    number = divisor.attr[0] if divisor.name == "constant" else 0
    if number and _SMALLEST < abs(1 / number) < 1 / _SMALLEST:
        return f"{a} * {constant_source(1 / number, torch.float32)}"
    return f"{a} / {b}"


#: Of a float32 that is not subnormal, rounded up.
_SMALLEST = 1.2e-38

#: op -> the text of its approximation in float32.
_APPROXIMATE: Mapping[str, Spelling] = {
    "div": _quotient,
    "tanh": lambda value, a: f"tanh_by_exp2({a})",
}


class TritonFunctionWriter(FunctionWriter):
    """Writes scalar programs over blocks. masks: the text of where a block's rows (``q``) and columns
    (``kv``) exist, if not everywhere. approximate: see the module's docstring."""

    language = TRITON

    def __init__(self, *args: Any, approximate: bool = False) -> None:
        super().__init__(*args)
        self.masks: dict[str, str] = {}
        self.approximate = approximate

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        if (
            self.approximate
            and value.dtype == torch.float32
            and value.name in _APPROXIMATE
            and self.reads_scores(value)
        ):
            return _APPROXIMATE[value.name](value, *(names[arg] for arg in value.args))
        return super().value_source(value, names)

    def as_long(self, text: str) -> str:
        return f"{text}.to(tl.int64)"

    def rounded(self, text: str, dtype: torch.dtype) -> str:
        return f"{text}.to({str(dtype).replace('torch', 'tl')}).to(tl.float32)"

    def definition(self, value: Value, name: str, text: str) -> str:
        return f"{name} = {text}"

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        return f"tl.full([], {self._index(index, names)}, tl.int64)"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        self.asserts = True
        return asserted_index(self.out, index, size, self._mask(value))

    def _mask(self, value: Value) -> str:
        """Returns where the positions exist that a value is computed from, "" for everywhere."""
        read = {node.buffer for node in topological([value]) if node.name == "load"}
        read |= {"q", "kv"} if "score" in read else set()
        return " & ".join(text for name, text in self.masks.items() if name in read)

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        if value.name == "masked_load":
            raise unsupported("codegen", "a masked load in a function of scores")
        dtype, layout = self.operands[value.buffer]
        address = self._index(layout.flat(value.attr[1]), names)
        extent = self.sizes.upper(layout.extent)
        if value.operands and (extent is None or extent > NARROW):
            wide = {value: f"{text}.to(tl.int64)" for value, text in names.items()}
            address = self._index(layout.flat(value.attr[1]), wide)
        mask = self._mask(value)
        mask = f", {mask}, other=0" if mask else ""
        widen = ".to(tl.float32)" if dtype in (torch.bfloat16, torch.float16) else ""
        return f"tl.load({self.pointer_of(value.buffer)} + ({address}){mask}){widen}"
