"""What a native library looks like from C: the names, types and layouts of its inputs and outputs, its
header, and their description as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_backend.codegen.common.writer import comment_text
from inductor_backend.codegen.cpp.expressions import C_TYPES as REGISTER_TYPES
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.ir.nodes import BufferLayout

#: C types of elements: bools and 8- and 16-bit floats are passed as their bits.
C_TYPES = {
    **REGISTER_TYPES, torch.bool: "uint8_t", torch.bfloat16: "uint16_t", torch.float16: "uint16_t",
    torch.float8_e4m3fn: "uint8_t", torch.float8_e5m2: "uint8_t",
}  # fmt: skip

#: Names that C or C++ keeps for itself.
_RESERVED = frozenset(
    {
        "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
        "compl", "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double",
        "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto",
        "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "nullptr",
        "operator", "or", "private", "protected", "public", "register", "restrict", "return", "short",
        "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try",
        "typedef", "typeid", "typename", "typeof", "union", "unsigned", "using", "virtual", "void",
        "volatile", "while", "xor", "tc",
    }
)  # fmt: skip

#: What a run may report: name of the code, its text. The first four are the kernels' numbers
#: (`codegen/cpp/prelude.h`, `kernels/cpu/tensors.h`).
ERRORS = (
    ("OK", "no error"),
    ("BAD_INDEX", "index out of range in self"),
    ("ZERO_DIVISION", "ZeroDivisionError"),
    ("NOT_BUILT", "a kernel was not built for these sizes"),
    ("NO_MEMORY", "no memory"),
    ("NULL_POINTER", "a pointer is null"),
    ("WRONG_PROCESSOR", "the library was built for a processor with more features"),
    ("BAD_SIZE", "a size is none that the library was built for"),
)


#: Names that a C library's headers may define as macros.
_MACROS = frozenset(
    {"errno", "stdin", "stdout", "stderr", "linux", "unix", "null", "eof", "assert"}
)


def identifier(text: str, taken: Collection[str] = (), prefix: str = "x") -> str:
    """Returns a C identifier like `text` that differs from those taken even in capitals. prefix: what
    it begins with where it would not begin with a letter."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    if not name or not name[0].isalpha():
        name = f"{prefix}_{name}".rstrip("_")
    if name in _RESERVED or name.lower() in _MACROS:
        name += "_"
    result, number, used = name, 1, set(map(str.lower, taken))
    while result.lower() in used:
        number += 1
        result = f"{name}_{number}"
    return result


@dataclass(frozen=True, slots=True)
class Size:
    """A size that the caller gives."""

    #: Its name in expressions.
    symbol: str
    #: The name of its member in C.
    name: str
    source: str
    lower: int
    upper: int | None

    @property
    def range(self) -> str:
        """Returns the sizes that it may be."""
        return f"at least {self.lower}" if self.upper is None else f"{self.lower} to {self.upper}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input or output."""

    #: The name of its member in C.
    name: str
    #: Where it is in the user's program.
    source: str
    dtype: torch.dtype
    layout: BufferLayout
    #: The buffer of the loop IR.
    buffer: str

    def __post_init__(self) -> None:
        if self.dtype not in C_TYPES:
            raise unsupported("native library", f"{self.source}: C has no type for {self.dtype}")

    @property
    def nbytes(self) -> Expr:
        return simplify(self.layout.extent * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Interface:
    """name: the prefix of every exported name. sizes: those that the caller gives. about: facts for
    the JSON file."""

    name: str
    inputs: Sequence[Parameter]
    outputs: Sequence[Parameter]
    sizes: Sequence[Size] = ()
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def exported(self) -> tuple[str, ...]:
        """Returns the names that the library exports."""
        sized = [f"{parameter.name}_bytes" for parameter in self.sized]
        return tuple(f"{self.name}_{what}" for what in ("open", "run", "close", "error", *sized))

    @property
    def sized(self) -> list[Parameter]:
        """Returns the tensors whose bytes depend on the caller's sizes."""
        return [each for each in (*self.inputs, *self.outputs) if not isinstance(each.nbytes, int)]

    def bytes_of(self, parameter: Parameter) -> str:
        """Returns the bytes of a tensor in C, where ``inputs`` is a variable."""
        if isinstance(parameter.nbytes, int):
            return f"{self.name.upper()}_{parameter.name.upper()}_BYTES"
        return f"{self.name}_{parameter.name}_bytes(&inputs)"

    def number(self, size: Expr) -> int | str:
        """Returns a size as JSON has it: an int, or a text with the names of the caller's sizes."""
        if isinstance(size, int):
            return size
        names = {size.symbol: size.name for size in self.sizes}
        return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(size))

    def _described(self, parameter: Parameter) -> dict[str, Any]:
        return {
            "name": parameter.name,
            "source": parameter.source,
            "dtype": str(parameter.dtype)[6:],
            "sizes": list(map(self.number, parameter.layout.sizes)),
            "strides": list(map(self.number, parameter.layout.strides)),
            "bytes": self.number(parameter.nbytes),
        }

    def json(self) -> str:
        """Returns the description as JSON."""
        described = {
            "format": 1,
            "name": self.name,
            "sizes": [
                {"name": size.name, "source": size.source, "least": size.lower, "most": size.upper}
                for size in self.sizes
            ],
            "inputs": list(map(self._described, self.inputs)),
            "outputs": list(map(self._described, self.outputs)),
            "errors": {f"{self.name.upper()}_{code}": k for k, (code, _) in enumerate(ERRORS)},
            **self.about,
        }
        return json.dumps(described, indent=1) + "\n"

    def header(self) -> str:
        """Returns the C header."""
        name, big = self.name, self.name.upper()
        codes = ",\n".join(f"    {big}_{code} = {k}" for k, (code, _) in enumerate(ERRORS))
        return f"""\
/* {name}: a model compiled by tracer-core (inductor_backend). Link with {name}.so. */
#ifndef {big}_H
#define {big}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* Dense tensors of these sizes and strides (in elements), aligned as their elements are. The memory of an
   output overlaps no other's and no input's. */
{self._struct("inputs", self.inputs, "const ")}
{self._struct("outputs", self.outputs, "")}
{self._bytes()}
enum {{
{codes}
}};

/* A context holds the memory of one run at a time: one a thread. */
typedef struct {name}_context {name}_context;

/* Makes a context. Returns {big}_OK, or an error. */
int {name}_open({name}_context **context);
/* Computes the outputs; on an error they hold anything. Runs with several contexts may overlap. Uses as many threads as
   OpenMP has (OMP_NUM_THREADS). */
int {name}_run({name}_context *context, const {name}_inputs *inputs, const {name}_outputs *outputs);
/* Frees a context; takes a null pointer, too. */
void {name}_close({name}_context *context);
/* Returns what a code means, a text that is never freed. */
const char *{name}_error(int code);

#ifdef __cplusplus
}}
#endif
#endif
"""

    def _struct(self, what: str, parameters: Sequence[Parameter], qualifier: str) -> str:
        lines = [
            f"    int64_t {size.name}; /* {_plain(size.source)}: {size.range} */\n"
            for size in (self.sizes if parameters is self.inputs else ())
        ]
        lines += [
            f"    {qualifier}{C_TYPES[parameter.dtype]} *{parameter.name}; /* {self._comment(parameter)} */\n"
            for parameter in parameters
        ]
        members = "".join(lines) or "    int nothing; /* not read */\n"
        return f"typedef struct {{\n{members}}} {self.name}_{what};\n"

    def _bytes(self) -> str:
        lines = [
            f"#define {self.name.upper()}_{value.name.upper()}_BYTES {value.nbytes}\n"
            for value in (*self.inputs, *self.outputs)
            if isinstance(value.nbytes, int)
        ]
        if self.sized:
            lines.append("\n/* Bytes, for the sizes in `inputs`, whose pointers are not read. */\n")
        lines += [
            f"int64_t {self.name}_{parameter.name}_bytes(const {self.name}_inputs *inputs);\n"
            for parameter in self.sized
        ]
        return "".join(lines)

    def _comment(self, parameter: Parameter) -> str:
        sizes, strides = (
            ", ".join(str(self.number(size)) for size in sizes)
            for sizes in (parameter.layout.sizes, parameter.layout.strides)
        )
        dtype = str(parameter.dtype)[6:]
        return f"{_plain(parameter.source)}: {dtype}, sizes [{sizes}], strides [{strides}]"


def _plain(source: str) -> str:
    """Returns text for a comment in C."""
    return comment_text(source).replace("*/", "* /")
