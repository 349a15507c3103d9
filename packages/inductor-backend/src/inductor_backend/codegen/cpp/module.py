"""Writes all kernels of a graph as a few C++ translation units.

Operator calls separate runs. A run is one exported function `run_k` that takes the storages it
touches (and symbolic sizes) and makes its kernel calls in order. Kernels of equal text exist once.
"""

from __future__ import annotations

from inductor_backend.codegen.common.module import KernelModule, Run
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.expressions import memory_type
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.size_source import size_expression
from inductor_backend.limits import MAX_SINGLE_SOURCE

PREAMBLE = """#include "prelude.h"
extern "C" int omp_get_max_threads(void);
static inline int64_t tc_threads() { return omp_get_max_threads(); }
// Where part number `part` of `total` items starts.
static inline int64_t tc_cut(int64_t total, int64_t part, int64_t parts) {
    return total / parts * part + total % parts * part / parts;
}
// The same; cuts lie at multiples of 16 where items are many.
static inline int64_t tc_part(int64_t total, int64_t part, int64_t parts) {
    if (part >= parts) return total;
    const int64_t cut = tc_cut(total, part, parts);
    return total >= 512 ? cut / 16 * 16 : cut;
}
// How many of `columns` are walked side by side: as many as leave a tile for each thread, of `cells` in all.
static inline int64_t tc_width(int64_t cells, int64_t columns, bool many, int64_t widest) {
    const int64_t share = cells / (many ? tc_threads() : 1);
    return tc_greatest(64, tc_least(widest, tc_least(share, columns) / 64 * 64));
}
// Into how many parts threads cut the rows of `cells` columns: 1 where each has a page of columns, or where rows are few.
static inline int64_t tc_row_parts(int64_t cells, int64_t rows, bool many) {
    const int64_t threads = many ? tc_threads() : 1, parts = tc_least(threads, rows / 8);
    return cells < 256 * threads && parts > 1 && parts >= tc_least(threads, (cells + 63) / 64) ? parts : 1;
}
"""

#: After a kernel that may fail: later kernels must not write its results into the caller's tensors.
STOP = "if (tc_failures() != failures) return;"


class CppModule(KernelModule):
    """Writes kernels and runs as C++."""

    comment = "//"

    def key(self, kernel: KernelSource) -> tuple[str, frozenset[str]]:
        return kernel.text, kernel.headers

    def new_name(self, kernel: KernelSource) -> str:
        return f"fused_{kernel.label}_{len(self.kernels)}"

    def write_call(self, run: Run, kernel: KernelSource, name: str) -> None:
        written = [self._pointer(run, storage) for storage in kernel.pointers]
        sizes = [self._size(run, size) for size in kernel.sizes]
        if len(run.called) == 2:
            run.lines.insert(0, "TC_ROW(0);")
        if len(run.called) > 1:
            run.lines.append(f"TC_ROW({len(run.called) - 1});")
        run.lines.append(f"{name}({', '.join([*written, *sizes])});")
        if kernel.fails:
            run.lines.append(STOP)
            run.fails = True

    def _pointer(self, run: Run, storage: str) -> str:
        kind = memory_type(self.program.buffers[storage].dtype)
        offset = self.offset(storage)
        if offset is None:
            return f"({kind}*)a[{run.slot(storage)}]"
        run.in_arena = True
        return f"({kind}*)(a[{run.slot('arena')}] + {self._size(run, offset)})"

    def _size(self, run: Run, size: Expr) -> str:
        if not isinstance(size, int):
            for symbol in sorted(map(str, size.free_symbols)):
                if symbol not in run.symbols:
                    run.symbols.append(symbol)
        return size_expression(size)

    def _function(self, run: Run, out: CodeWriter) -> None:
        with out.block(f"TC_EXPORT void {run.name}(const int64_t* a)"):
            for place, symbol in enumerate(run.symbols):
                out.line(f"const int64_t {symbol} = a[{len(run.arguments) + place}];")
            if run.fails:
                out.line("const int failures = tc_failures();")
            for line in run.lines:
                out.line(line)

    def _share_runs(self) -> None:
        """Merges runs that make the same calls, as those of equal layers do, into one function."""
        first: dict[tuple[object, ...], Run] = {}
        for run in self.runs:
            same = first.setdefault((len(run.arguments), *run.symbols, *run.lines), run)
            run.name = same.name
        self.runs = list(first.values())

    def sources(self) -> list[str]:
        """Returns the translation units: runs stay with the kernels they call; two units where
        there is enough to compile for two processor cores."""
        self._share_runs()
        names = {name: text for (text, _), (name, _) in self.kernels.items()}
        uses = [(run, [name for name in names if name in run.called]) for run in self.runs]
        if not uses:
            return []
        return [self._unit(part) for part in self._split(uses, names) if part]

    @staticmethod
    def _split(
        uses: list[tuple[Run, list[str]]], names: dict[str, str]
    ) -> list[list[tuple[Run, list[str]]]]:
        total = sum(len(text) for text in names.values())
        if total < MAX_SINGLE_SOURCE:
            return [uses]
        parts: list[list[tuple[Run, list[str]]]] = [[], []]
        held: list[set[str]] = [set(), set()]
        weight = [0, 0]
        for run, used in uses:
            extra = [sum(len(names[n]) for n in used if n not in held[k]) for k in (0, 1)]
            k = min((0, 1), key=lambda k: weight[k] + 2 * extra[k])
            parts[k].append((run, used))
            held[k].update(used)
            weight[k] += extra[k]
        return parts

    def _unit(self, uses: list[tuple[Run, list[str]]]) -> str:
        out = CodeWriter()
        out.raw(PREAMBLE)
        wanted = {name for _, used in uses for name in used}
        kernels = [kernel for kernel in self.kernels.items() if kernel[1][0] in wanted]
        included = frozenset[str]().union(*(headers for (_, headers), _ in kernels))
        for header in sorted(included, reverse=True):
            out.raw(f'#include "{header}"\n')
        for (text, _), (name, comments) in kernels:
            out.raw(self.text_of(text, name, comments))
        for run, _ in uses:
            self._function(run, out)
        return out.text()
