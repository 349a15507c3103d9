"""Compiles a kernel's text to machine code with Triton's compiler.

The target device need not be present. Triton's compile errors become a `NotCompiled` with the
kernel's text. Imports no torch, so that a compile worker starts in a third of a second.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inductor_backend.runtime.cuda.interpreter import blocks_of_program, interpreting

#: What stands above a kernel in a generated module: a new line, and the user's lines.
_COMMENTS = re.compile(r"\A\s*(?:#.*\n)*")

#: The compute capability from which on kernels can wait for the one before by themselves.
OVERLAPPING = 90

#: What another tile changes in a kernel's results: nothing, or the order in which it adds. "": the
#: tile is not searched for.
TileEffect = Literal["", "none", "order"]


@dataclass(frozen=True)
class Kernel:
    """name: of the function in the text. pointers: their types (``*fp32``). sizes: number of int64
    arguments after them. constants: block sizes. warps: of a program. stages: of software
    pipelining. matrices: element type and block (rows, columns) of each tensor descriptor:
    arguments d0, d1, ... after the sizes. asserts: it has device assertions. searched: another tile
    may replace it between two calls, and what that changes in its results."""

    name: str
    text: str
    pointers: Sequence[str]
    sizes: int
    constants: Mapping[str, int]
    warps: int
    stages: int = 1
    matrices: Sequence[tuple[str, int, int]] = ()
    asserts: bool = False
    searched: TileEffect = ""

    def key(self) -> str:
        """Returns the key of what is compiled, without comments (the user's lines)."""
        constants = sorted(self.constants.items())
        parts = (
            self.name,
            _COMMENTS.sub("", self.text),
            *self.pointers,
            self.sizes,
            constants,
            self.warps,
            self.stages,
            *self.matrices,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Binary:
    """name: of the function in the code. shared: bytes. scratch: bytes of global memory that it
    asks for. copies: Triton's metadata of each matrix's tensor descriptor. overlaps: its blocks
    wait for the kernel before by themselves, so they may start while that one ends (CUDA's
    programmatic dependent launch)."""

    name: str
    code: bytes
    warps: int
    shared: int
    scratch: int
    copies: Sequence[Mapping[str, Any]]
    overlaps: bool = False


class NotCompiled(Exception):
    """detail: the error. text: the kernel's."""

    def __init__(self, detail: str, text: str) -> None:
        super().__init__(detail, text)
        self.detail, self.text = detail, text


def target_of(capability: int) -> Any:
    """Returns a target by its compute capability (80, 90, ...), for compiling without a GPU."""
    from triton.backends.compiler import GPUTarget  # heavy: triton

    return GPUTarget("cuda", capability, 32)


class NotPersisted(Exception):
    """The kernel is not in Triton's cache."""


def compiled_and_stored(kernel: Kernel, target: Any) -> Binary:
    """Returns the kernel from Triton's cache. Raises NotPersisted, before anything is compiled."""
    return binary_of(kernel, target, make=False)


def binary_of(kernel: Kernel, target: Any, aligned: bool = True, make: bool = True) -> Binary:
    """Returns the kernel's machine code and launch metadata. Raises NotCompiled."""
    result = compiled(kernel, target, aligned, make)
    metadata = result.metadata
    return Binary(
        result.name,
        _machine_code(result, kernel, target),
        metadata.num_warps,
        metadata.shared,
        getattr(metadata, "global_scratch_size", 0) or 0,
        getattr(metadata, "tensordesc_meta", None) or (),
        can_overlap(target),
    )


def can_overlap(target: Any) -> bool:
    """Returns whether kernels of a target may start while the one before ends."""
    return bool(target.arch >= OVERLAPPING)


#: LLVM's operations on pairs of 16-bit integers, which it uses from sm_90 on.
_PAIR = re.compile(r"\b(\w+)\.([su])16x2\s+(%\w+), (%\w+), (%\w+);")
_ONE_BY_ONE = (
    r"{ .reg .b16 %pair<4>; mov.b32 {%pair0, %pair1}, \4; mov.b32 {%pair2, %pair3}, \5; "
    r"\1.\g<2>16 %pair0, %pair0, %pair2; \1.\g<2>16 %pair1, %pair1, %pair3; mov.b32 \3, {%pair0,"
    r" %pair1}; }"
)


#: The negative and the size of a 16-bit integer, of which ptxas keeps 32 bits (seen with 13.0).
_NEGATIVE = re.compile(r"\bneg\.s16\s+(%\w+), (%\w+);")
_SIZE = re.compile(r"\babs\.s16\s+(%\w+), (%\w+);")


def corrected(ptx: str, pairs: bool) -> str:
    """Rewrites PTX that ptxas gets wrong: pairs of 16-bit integers, if `pairs`, and the negative of
    -32768, which it makes 32768 where the result is converted to a wider type."""
    ptx = _SIZE.sub(r"mul.lo.s16 \1, \2, -1; max.s16 \1, \1, \2;", ptx)
    ptx = _NEGATIVE.sub(r"mul.lo.s16 \1, \2, -1;", ptx)
    return without_pairs(ptx) if pairs else ptx


def without_pairs(ptx: str) -> str:
    """Replaces operations on pairs of 16-bit integers (``add.s16x2``) in PTX by two scalar
    operations.

    ptxas up to 13.1 (fixed in 13.3) miscompiles a pair of which only the upper half is read: the
    constant operand becomes zero. LLVM makes such pairs from index arithmetic whose range it knows,
    and a block longer than the rows it covers leaves dead halves. Gradients of max pooling and of
    shifted windows were wrong by this."""
    return _PAIR.sub(_ONE_BY_ONE, ptx)


def _machine_code(result: Any, kernel: Kernel, target: Any) -> bytes:
    """Returns the machine code of Triton's CompiledKernel, reassembled where its PTX has what ptxas
    gets wrong."""
    ptx = result.asm.get("ptx")
    if ptx is None:
        detail = (
            "Triton has not kept its PTX, which is needed: unset TRITON_STORE_BINARY_ONLY and"
            " remove its cache"
        )
        raise NotCompiled(f"{kernel.name}: {detail}", kernel.text)
    right = corrected(ptx, pairs=target.arch >= 90)
    if right == ptx:
        return result.kernel  # type: ignore[no-any-return]
    from triton.compiler.compiler import make_backend  # heavy: triton

    backend = make_backend(target)
    options = backend.parse_options(_options(kernel, target))
    cubin: bytes = backend.make_cubin(right, {}, options, target.arch)
    return cubin


def compiled(kernel: Kernel, target: Any, aligned: bool = True, make: bool = True) -> Any:
    """Returns Triton's CompiledKernel. aligned: pointers are multiples of 16 bytes. make: compile
    on a cache miss, else raise NotPersisted. Raises NotCompiled."""
    import triton  # heavy: triton

    names = [f"p{k}" for k in range(len(kernel.pointers))]
    signature = dict(zip(names, kernel.pointers, strict=True))
    signature |= {f"ks{k}": "i64" for k in range(kernel.sizes)}
    signature |= dict.fromkeys(kernel.constants, "constexpr")
    constants: dict[str, Any] = dict(kernel.constants)
    if kernel.matrices:
        matrices = {f"d{k}": form for k, form in enumerate(kernel.matrices)}
        if aligned:
            signature |= {
                n: f"tensordesc<{kind}[{y}, {x}]>" for n, (kind, y, x) in matrices.items()
            }
        else:
            signature |= dict.fromkeys(matrices, "constexpr")
            constants |= dict.fromkeys(matrices)
        signature["BULK"], constants["BULK"] = "constexpr", aligned
    attributes = {(k,): [["tt.divisibility", 16]] for k in range(len(names))} if aligned else {}
    source = _source_classes()[make](
        function_of(kernel, can_overlap(target)), signature, constants, attributes
    )
    try:
        return triton.compile(source, target=target, options=_options(kernel, target))
    except NotPersisted:
        raise
    except Exception as error:
        detail = (
            f"Triton does not compile {kernel.name}: {type(error).__name__}: {error}{remedy(error)}"
        )
        raise NotCompiled(detail, kernel.text) from error


@functools.cache
def _source_classes() -> tuple[Any, Any]:
    """Returns two classes of Triton's ASTSource: one that raises on a cache miss, and Triton's own."""
    from triton.compiler import ASTSource  # heavy: triton

    class TextSource(ASTSource):
        def make_ir(self, *unused: Any, **unused_names: Any) -> Any:
            raise NotPersisted  # Triton calls this on a cache miss

    return TextSource, ASTSource


def remedy(error: BaseException) -> str:
    """Returns what to do about an error of Triton's compiler or loader that its cache may have
    caused; "" for others."""
    where = os.environ.get("TRITON_CACHE_DIR", "~/.triton/cache")
    if isinstance(error, OSError):
        return (
            f" (Triton's cache is {where}: make room there, or set TRITON_CACHE_DIR to another"
            " folder)"
        )
    if isinstance(error, ValueError) or "image is invalid" in str(error):
        return f" (a file of Triton's cache may be damaged: remove {where})"
    return ""


def _options(kernel: Kernel, target: Any) -> dict[str, Any]:
    from triton.backends.nvidia.compiler import CUDAOptions  # heavy: triton

    # Denormals are kept, as in eager; no fma contraction, so that a value computed in two kernels is
    # the same to the bit; an index out of range is a device assertion.
    options = {
        "num_warps": kernel.warps,
        "num_stages": kernel.stages,
        "enable_reflect_ftz": False,
        "enable_fp_fusion": False,
        "sanitize_overflow": False,
    }
    if kernel.asserts:
        options["debug"] = True
    known = CUDAOptions.__dataclass_fields__
    return {name: value for name, value in options.items() if name in known}


def function_of(kernel: Kernel, overlaps: bool = False) -> Any:
    """Returns the kernel's text as a Triton function (interpreted under TRITON_INTERPRET=1).
    overlaps: it begins with the wait for the kernel before."""
    from inductor_backend.runtime.cuda import device_functions  # heavy: triton

    file, text = f"/inductor/triton/{kernel.name}_{kernel.key()}.py", kernel.text
    if overlaps:
        head = rf"(?m)^def {kernel.name}\(.*\):\n"
        text, heads = re.subn(head, r"\g<0>    wait_for_last_kernel()\n", text)
        assert heads == 1, f"{kernel.name} would run without its wait"
    if interpreting():  # its loops want bounds that are Python's ints
        text = re.sub(r"\bks(\d+)(?=[,)])", r"ks\1: tl.constexpr", text, count=kernel.sizes)
        text = re.sub(
            r"tl\.range\(tl\.program_id\(0\), blocks,.*\):", "blocks_of_program(blocks):", text
        )
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"blocks_of_program": blocks_of_program, **vars(device_functions)}
    namespace["__name__"] = "inductor_triton"
    exec(compile(text, file, "exec"), namespace)
    return namespace[kernel.name]
