"""Machine code of two kernels for sm_90, as `tests/triton_kernels/test_machine_code.py` looks at
it.

Out: a line of JSON. Runs in a process without TRITON_INTERPRET; needs no GPU.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton

from inductor_backend.runtime.cuda.triton_compile import (
    Kernel,
    binary_of,
    compiled,
    corrected,
    target_of,
)

#: The gradient of max pooling, as far as its indices: a block of 8192 for rows of 6272 leaves
#: halves that nobody reads.
WINDOWS = """
@triton.jit
def windows(p0, p1, p2, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    rindex = tl.arange(0, RBLOCK)[None, :]
    rmask = rindex < 6272
    r0 = rindex // 112
    r1 = rindex % 112
    value = tl.load(p0 + (6272 * xindex + rindex), rmask)
    row = ((1 + r0) // 2 - 1 >= 0) & (r0 + 3 - 2 * ((1 + r0) // 2) < 3)
    left = row & ((1 + r1) // 2 - 1 >= 0) & (r1 + 3 - 2 * ((1 + r1) // 2) < 3)
    right = row & ((1 + r1) // 2 < 56)
    place = (1 + r1) // 2 + 1568 * xindex + 56 * ((1 + r0) // 2)
    a = tl.where(left, tl.load(p1 + (place - 57), rmask & left, other=0), -1)
    b = tl.where(right, tl.load(p1 + (place - 56), rmask & right, other=0), -1)
    first = r1 + 3 * r0 - 2 * ((1 + r1) // 2) - 6 * ((1 + r0) // 2)
    total = tl.where(a == first + 12, value, 0.0) + tl.where(b == first + 10, value, 0.0)
    tl.store(p2 + (6272 * xindex + rindex), total, rmask)
"""

SCALED = """
@triton.jit
def scaled(p0, p1, p2, p3, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(p3 + xindex, tl.load(p0 + xindex) * tl.load(p1 + xindex) + tl.load(p2 + xindex))
"""


NEGATIVES = """
@triton.jit
def negatives(p0, p1, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    value = tl.load(p0 + xindex)
    tl.store(p1 + xindex, (-value).to(tl.int64) * tl.abs(value).to(tl.int64))
"""


def disassembled(code: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return subprocess.run(
            [tool, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout


def main() -> None:
    target = target_of(90)
    windows = Kernel(
        "windows", WINDOWS, ["*fp32", "*i8", "*fp32"], 0, {"XBLOCK": 1, "RBLOCK": 8192}, 16
    )
    result = compiled(windows, target)
    scaled = disassembled(
        binary_of(Kernel("scaled", SCALED, ["*fp32"] * 4, 0, {"XBLOCK": 512}, 4), target).code
    )
    negatives = Kernel("negatives", NEGATIVES, ["*i16", "*i64"], 0, {"XBLOCK": 512}, 4)
    ptx = compiled(negatives, target).asm["ptx"]
    ours = corrected(ptx, pairs=True)
    actual = {
        "negatives in Triton's PTX": len(re.findall(r"\b(?:neg|abs)\.s16\b", ptx)),
        "negatives in ours": len(re.findall(r"\b(?:neg|abs)\.s16\b", ours)),
        "negatives assemble": bool(disassembled(binary_of(negatives, target).code)),
        "pairs in Triton's PTX": result.asm["ptx"].count("16x2"),
        "pairs in its machine code": disassembled(result.kernel).count("16x2"),
        "pairs in ours": disassembled(binary_of(windows, target).code).count("16x2"),
        "products and sums": len(re.findall(r"\b(?:FMUL|FADD)\b", scaled)),
        "fused": len(re.findall(r"\bFFMA\b", scaled)),
    }
    print(json.dumps(actual))


if __name__ == "__main__":
    main()
