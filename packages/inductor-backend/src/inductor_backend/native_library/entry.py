"""Writes the functions that a native library exports, as C++: they run a schedule's steps in the memory
of a context, and say what went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.module import PREAMBLE
from inductor_backend.codegen.cpp.step_calls import StepCalls, touched
from inductor_backend.codegen.native_calls import BATCH
from inductor_backend.compilation import Compilation
from inductor_backend.ir.index_expr import contiguous_strides, simplify
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    Strided,
    same_strides,
)
from inductor_backend.ir.size_source import ALIGNMENT, size_expression
from inductor_backend.kernels.selection import KernelKind
from inductor_backend.limits import MAX_CONTEXT_BYTES
from inductor_backend.native_library.interface import ERRORS, Interface, Parameter
from inductor_backend.native_library.weights import SYMBOL
from inductor_backend.runtime.huge_pages import LARGE
from inductor_backend.schedule.memory_plan import aligned, nbytes

#: Before a function of the library.
_EXPORTED = 'extern "C" __attribute__((visibility("default")))'

#: Bytes of a large page.
_PAGE = 2 << 20

#: What a processor may have, by the compiler's macro for it: the name in __builtin_cpu_supports.
_FEATURES = {
    "__SSE4_2__": "sse4.2", "__AVX__": "avx", "__AVX2__": "avx2", "__FMA__": "fma",
    "__BMI__": "bmi", "__BMI2__": "bmi2", "__AVX512F__": "avx512f", "__AVX512BW__": "avx512bw",
    "__AVX512CD__": "avx512cd", "__AVX512DQ__": "avx512dq", "__AVX512VL__": "avx512vl",
    "__AVX512IFMA__": "avx512ifma", "__AVX512VBMI__": "avx512vbmi",
    "__AVX512VBMI2__": "avx512vbmi2", "__AVX512VNNI__": "avx512vnni",
    "__AVX512BITALG__": "avx512bitalg", "__AVX512VPOPCNTDQ__": "avx512vpopcntdq",
}  # fmt: skip
#: The same of AArch64, by the end of the macro: the bit in Linux's auxiliary vector.
_HWCAPS = {
    "ATOMICS": "HWCAP_ATOMICS", "QRDMX": "HWCAP_ASIMDRDM", "DOTPROD": "HWCAP_ASIMDDP",
    "FP16_VECTOR_ARITHMETIC": "HWCAP_ASIMDHP", "SVE": "HWCAP_SVE", "SVE2": "HWCAP2_SVE2",
    "BF16": "HWCAP2_BF16", "MATMUL_INT8": "HWCAP2_I8MM",
}  # fmt: skip
#: The compiler's macro -> whether the processor has it, in C.
_CHECKS = {
    **{macro: f'__builtin_cpu_supports("{name}")' for macro, name in _FEATURES.items()},
    **{
        f"__ARM_FEATURE_{name}": f"(getauxval(AT_{bit.partition('_')[0]}) & {bit})"
        for name, bit in _HWCAPS.items()
    },
}


class EntryPoint(StepCalls):
    """Writes the entry of one library. Its memory is the plan's, then that of results which are
    copied to the caller's. conditions: on the caller's sizes, beside their ranges, in C++."""

    def __init__(
        self,
        c: Compilation,
        inputs: Sequence[Parameter],
        weights: dict[str, int],
        conditions: Sequence[str],
    ) -> None:
        super().__init__(c.program, c.memory, c.choices)
        self.steps, self.conditions = c.steps, conditions
        self.launchers: dict[str, None] = {}  # an ordered set of hand-written kernels
        self.loops: dict[str, None] = {}  # an ordered set of the graph's own loops
        self.nbytes = c.memory.size
        self.places["arena"] = "memory"
        for value in inputs:
            self.places[value.buffer] = f"(int64_t)inputs->{value.name}"
        for storage, offset in weights.items():
            self.places[storage] = f"(int64_t)({SYMBOL} + {offset})"
        self.outputs: list[Parameter] = []
        self.copies: list[tuple[Parameter, Strided]] = []  # results that lie elsewhere

    def add_output(self, name: str, tensor: Strided, source: str) -> None:
        """Adds a result: its kernel writes it where the caller wants it, or it is copied there."""
        buffer = self.program.buffers[tensor.buffer]
        if self._is_whole(buffer, tensor.layout):
            output = Parameter(name, source, buffer.dtype, buffer.layout, buffer.name)
            self.places[buffer.name] = f"(int64_t)outputs->{name}"
        else:
            sizes = tensor.layout.sizes
            output = Parameter(
                name,
                source,
                buffer.dtype,
                BufferLayout(sizes, contiguous_strides(sizes)),
                buffer.name,
            )
            self.copies.append((output, tensor))
        self.outputs.append(output)

    def _is_whole(self, buffer: Buffer, layout: BufferLayout) -> bool:
        """Returns whether a result is memory of its own, and all of it."""
        return (
            buffer.kind is not BufferKind.INPUT
            and buffer.storage == buffer.name
            and buffer.name not in self.places
            and buffer.name not in self.memory.offsets
            and layout.offset == buffer.layout.offset == 0
            and layout.sizes == buffer.layout.sizes
            and same_strides(layout, buffer.layout.strides)
        )

    def place_rest(self) -> None:
        """Places what is neither an input, a weight, in the arena nor a result of the caller's."""
        read = [self.program.buffers[tensor.buffer].storage for _, tensor in self.copies]
        for storage in (
            *(storage for step in self.steps for storage in touched(self.program, step)),
            *read,
        ):
            if storage not in self.places and storage not in self.memory.offsets:
                assert storage not in self.program.inputs, f"{storage} has no values"
                self.places[storage] = f"memory + {self.size(self.nbytes)}"
                self.nbytes = simplify(self.nbytes + aligned(nbytes(self.program.buffers[storage])))

    # steps ---------------------------------------------------------------------------------------

    def kernel(self, launcher: str) -> str:
        self.launchers[launcher] = None
        return launcher

    def extern(self, node: ExternNode) -> str:
        choice = self.choices[node.name]
        if choice.kind is KernelKind.LOOP:
            return self._loop(node)
        text = super().extern(node)
        return self._for_each(node, text) if choice.form == BATCH else text

    def _for_each(self, node: ExternNode, text: str) -> str:
        """Returns the loop over the matmuls of a batch. Threads share them; inside, one thread
        computes each."""
        sizes = (*node.args[0].layout.sizes, node.args[1].layout.sizes[2])
        count, work = self.size(sizes[0]), " * ".join(map(self.size, sizes))
        return (
            f"#pragma omp parallel for if ({count} > 1 && {work} > 150000)\n"
            f"for (int64_t {BATCH} = 0; {BATCH} < {count}; ++{BATCH}) {text}"
        )

    def _loop(self, node: ExternNode) -> str:
        loop = node.target
        self.loops[loop.name] = None
        results = [Strided(name, self.program.buffers[name].layout) for name in node.writes]
        numbers = [self.address(arg) for arg in (*node.args, *results)]
        numbers += [f"(int64_t)&{self.kernel(launcher)}" for launcher in loop.launchers]
        numbers += loop.symbols
        numbers += [] if loop.length is None else [self.size(loop.length)]
        return self.call_source(loop.name, numbers)

    def _copy(self, output: Parameter, tensor: Strided) -> str:
        """Returns the loops that copy a result to the caller's memory."""
        kind = f"uint{8 * output.dtype.itemsize}_t"
        names = [f"i{k}" for k in range(len(output.layout.sizes))]
        heads = "".join(
            f"for (int64_t {name} = 0; {name} < {self.size(size)}; ++{name}) "
            for name, size in zip(names, output.layout.sizes, strict=True)
        )

        def place(strides: Sequence[Any]) -> str:
            terms = [
                f"{name} * {self.size(stride)}" for name, stride in zip(names, strides, strict=True)
            ]
            return " + ".join(terms) or "0"

        return (
            f"{{ const {kind}* from = (const {kind}*)({self.address(tensor)});"
            f" {kind}* to = ({kind}*)outputs->{output.name};"
            f" {heads}to[{place(output.layout.strides)}] = from[{place(tensor.layout.strides)}]; }}"
        )

    # the text ------------------------------------------------------------------------------------

    def text(self, interface: Interface) -> str:
        """Returns the translation unit."""
        calls = [self.call(step) for step in self.steps]
        copies = [self._copy(*copy) for copy in self.copies]
        out = CodeWriter()
        out.raw(PREAMBLE)
        headers = ("pthread.h", "stdlib.h", "sys/auxv.h", "sys/mman.h")
        out.raw("".join(f"#include <{header}>\n" for header in headers))
        out.raw(interface.header())
        out.line(f'extern "C" __attribute__((visibility("hidden"))) const char {SYMBOL}[];')
        runs = {step.run.name: None for step in self.steps if step.run is not None}
        for function in (*runs, *self.loops, *self.launchers):
            out.line(f'extern "C" void {function}(const int64_t* a);')
        name, big = interface.name, interface.name.upper()
        with out.block(
            f"static void steps(const {name}_inputs* inputs, const {name}_outputs* outputs,"
            " int64_t memory)"
        ):
            self._write_sizes(out, interface)
            out.line("const int failures = tc_failures();")
            for call, step in zip(calls, self.steps, strict=True):
                out.raw(f"    {call}\n")
                if step.run is None or step.run.fails:
                    out.line("if (tc_failures() != failures) return;")
            for copy in copies:
                out.line(copy)
        self._write_check(out, interface)
        self._write_bytes(out, interface)
        out.raw(_REST.format(
            name=name, big=big, alignment=ALIGNMENT, page=_PAGE, large=LARGE,
            early=int(not interface.sizes), texts=", ".join(f'"{text}"' for _, text in ERRORS), count=len(ERRORS),
        ))  # fmt: skip
        return out.text()

    @staticmethod
    def _write_sizes(out: CodeWriter, interface: Interface, kind: str = "int64_t") -> None:
        """Writes the symbols of the sizes that the caller gives."""
        for size in interface.sizes:
            out.line(f"const {kind} {size.symbol} = inputs->{size.name};")

    def _write_bytes(self, out: CodeWriter, interface: Interface) -> None:
        """Writes the bytes of a context's memory, and of tensors whose sizes the caller gives."""
        name = interface.name
        functions = [("static int64_t needed", self.nbytes)]
        functions += [
            (f"{_EXPORTED} int64_t {name}_{parameter.name}_bytes", parameter.nbytes)
            for parameter in interface.sized
        ]
        for head, size in functions:
            with out.block(f"{head}(const {name}_inputs* inputs)"):
                self._write_sizes(out, interface)
                out.line(f"return {size_expression(size)};")

    def _write_check(self, out: CodeWriter, interface: Interface) -> None:
        """Writes the checks of the processor, and of the caller's pointers and sizes."""
        with out.block("static bool fits()"):
            out.raw("#if defined(__x86_64__)\n    __builtin_cpu_init();\n#endif\n")
            for macro, check in _CHECKS.items():
                out.raw(f"#ifdef {macro}\n    if (!{check}) return false;\n#endif\n")
            out.line("return true;")
        name = interface.name
        with out.block(
            f"static bool given(const {name}_inputs* inputs, const {name}_outputs* outputs)"
        ):
            self._write_sizes(out, interface)
            for what, parameters in (("inputs", interface.inputs), ("outputs", interface.outputs)):
                for parameter in parameters:
                    size = size_expression(parameter.nbytes)
                    out.line(f"if ({size} != 0 && !{what}->{parameter.name}) return false;")
            out.line("return true;")
        with out.block(f"static bool sized(const {name}_inputs* inputs)"):
            self._write_sizes(out, interface, "__int128")  # no product of them overflows
            for number in interface.sizes:
                out.line(f"if ({number.symbol} < {number.lower}) return false;")
                if number.upper is not None:
                    out.line(f"if ({number.symbol} > {number.upper}) return false;")
            for condition in self.conditions:
                out.line(f"if (!{condition}) return false;")
            for nbyte in (self.nbytes, *(parameter.nbytes for parameter in interface.sized)):
                if not isinstance(nbyte, int):
                    out.line(f"if ({size_expression(nbyte)} > {MAX_CONTEXT_BYTES}) return false;")
            out.line("return true;")


#: Runs share the count of failures (`tc_error`), so a run that overlaps one that fails may see the other's failure: it
#: then runs once more with no other run beside it, when a failure is its own.
_REST = """
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP  // else runs that follow each other could keep one that waits out
static pthread_rwlock_t alone = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
#else
static pthread_rwlock_t alone = PTHREAD_RWLOCK_INITIALIZER;
#endif

struct {name}_context {{ char* memory; size_t size; }};

// Whether the context has that much memory; what it had is lost where it grows.
static bool reserve({name}_context* context, size_t least) {{
    if (least <= context->size) return true;
    const size_t page = least >= {large} ? {page} : {alignment}, size = (least + page - 1) / page * page;
    free(context->memory);
    context->memory = (char*)aligned_alloc(page, size);
    context->size = context->memory ? size : 0;
#ifdef MADV_HUGEPAGE
    if (context->memory && page > {alignment}) madvise(context->memory, size, MADV_HUGEPAGE);
#endif
    return context->memory != nullptr;
}}

extern "C" __attribute__((visibility("default"))) void {name}_close({name}_context* context) {{
    if (!context) return;
    free(context->memory);
    free(context);
}}

extern "C" __attribute__((visibility("default"))) int {name}_open({name}_context** context) {{
    if (!context) return {big}_NULL_POINTER;
    *context = nullptr;
    if (!fits()) return {big}_WRONG_PROCESSOR;
    {name}_context* made = ({name}_context*)calloc(1, sizeof({name}_context));
    if (!made || ({early} && !reserve(made, (size_t)needed(nullptr)))) {{
        {name}_close(made);
        return {big}_NO_MEMORY;
    }}
    *context = made;
    return {big}_OK;
}}

static int once(const {name}_context* context, const {name}_inputs* inputs, const {name}_outputs* outputs) {{
    const int before = tc_failures();
    steps(inputs, outputs, (int64_t)context->memory);
    return tc_failures() == before ? {big}_OK : __atomic_load_n(&tc_error[1], __ATOMIC_RELAXED);
}}

extern "C" __attribute__((visibility("default"))) int {name}_run({name}_context* context, const {name}_inputs* inputs,
                                                                 const {name}_outputs* outputs) {{
    if (!context || !inputs || !outputs) return {big}_NULL_POINTER;
    if (!sized(inputs)) return {big}_BAD_SIZE;
    if (!given(inputs, outputs)) return {big}_NULL_POINTER;
    if (!reserve(context, (size_t)needed(inputs))) return {big}_NO_MEMORY;
    pthread_rwlock_rdlock(&alone);
    int code = once(context, inputs, outputs);
    pthread_rwlock_unlock(&alone);
    if (code == {big}_OK) return code;
    pthread_rwlock_wrlock(&alone);
    code = once(context, inputs, outputs);
    pthread_rwlock_unlock(&alone);
    return code;
}}

extern "C" __attribute__((visibility("default"))) const char* {name}_error(int code) {{
    static const char* const texts[] = {{{texts}}};
    return code >= 0 && code < {count} ? texts[code] : "an unknown code";
}}
"""
