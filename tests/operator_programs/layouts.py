"""``python -m tests.operator_programs.layouts --count N --start-seed S --device cuda``: what the graph
promises of each ATen node, beside what the operator gives.

In: seeds of operator programs. Out: each kind of difference in dtype, sizes or strides, how often it
was seen, and one example. No kernel of ours runs, so that thousands of programs take a minute. What
always holds: strides of a dimension of one element, and of an empty tensor, mean nothing.
"""

from __future__ import annotations

import argparse
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import tracer_core
from tests.operator_programs.program import Program, changed, generate
from tests.opinfo.values import copied
from tracer_core.plugin_api import Backend, hookimpl
from tracer_core.registry import discovery

NAME = "promised_layouts"


@dataclass
class Promises:
    """Mutable. nodes: how many were compared. found: (operator, what differs) -> how often; examples:
    one each."""

    nodes: int = 0
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    seed: int = 0

    def compare(self, node: torch.fx.Node, result: Any) -> None:
        self.nodes += 1
        for promised, real in _pairs(node.meta.get("val"), result):
            what = _difference(promised, real)
            if what is not None:
                key = (str(node.target), what)
                self.found[key] += 1
                layouts = [_layout(source.meta.get("val")) for source in node.all_input_nodes]
                text = (
                    f"seed {self.seed}: {node.args} {layouts}: {_layout(promised)}, {_layout(real)}"
                )
                self.examples.setdefault(key, text)


def _pairs(promised: Any, real: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    several = isinstance(promised, (tuple, list)) and isinstance(real, (tuple, list))
    for item, other in zip(promised, real, strict=False) if several else ((promised, real),):
        if isinstance(item, torch.Tensor) and isinstance(other, torch.Tensor):
            yield item, other


def _difference(promised: torch.Tensor, real: torch.Tensor) -> str | None:
    if promised.dtype != real.dtype:
        return "dtype"
    sizes, strides = _numbers(promised.shape), _numbers(promised.stride())
    if None in sizes or None in strides:  # they depend on data
        return None
    if sizes != list(real.shape):
        return "sizes"
    pairs = zip(sizes, strides, real.stride(), strict=True)
    differ = real.numel() and any(size != 1 and a != b for size, a, b in pairs)
    return "strides" if differ else None


def _numbers(values: Sequence[Any]) -> list[Any]:
    """What symbols stand for in the call that was captured."""
    return [value.node.hint if isinstance(value, torch.SymInt) else value for value in values]


def _layout(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} {_numbers(value.shape)} {_numbers(value.stride())}"


class _Compared(torch.fx.Interpreter):
    def __init__(self, graph: torch.fx.GraphModule, promises: Promises) -> None:
        super().__init__(graph)
        self.promises = promises

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if node.op == "call_function":
            self.promises.compare(node, result)
        return result


def sweep(programs: Sequence[Program], promises: Promises) -> Counter[str]:
    """Runs the programs without gradients; the errors that eager or the check of results raised."""

    def compiled(graph: Any, spec: Any) -> Any:
        return lambda inputs: list(_Compared(graph, promises).run(*inputs))

    @hookimpl
    def tracer_backends() -> list[Backend]:
        devices = frozenset({"cpu", "cuda"})
        return [Backend(name=NAME, compile=compiled, ir="aten", devices=devices, shapes="symbolic")]

    plugin = types.SimpleNamespace(tracer_backends=tracer_backends)
    unregister, errors = discovery.register(plugin, NAME), Counter[str]()
    try:
        for program in programs:
            promises.seed = program.seed
            function, dynamic = program.function(), program.mode.dynamic
            fast = tracer_core.compile(function, backend=NAME, dynamic=dynamic)
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fast(*copied(program.arguments(0)))
            except Exception as error:
                errors[f"{type(error).__name__}: {error}"[:120]] += 1
    finally:
        unregister()
    return errors


def programs(first: int, count: int, device: str) -> list[Program]:
    """Those of the seeds that eager does not refuse, without gradients."""
    result = (changed(generate(seed), None, device) for seed in range(first, first + count))
    return [
        replace(item, mode=replace(item.mode, gradients=False))
        for item in result
        if not item.raises
    ]


def main() -> int:
    known = argparse.ArgumentParser(
        prog="python -m tests.operator_programs.layouts", description=__doc__
    )
    known.add_argument("--count", type=int, default=1000)
    known.add_argument("--start-seed", type=int, default=0)
    known.add_argument("--device", default="cpu", help="cpu or cuda")
    options = known.parse_args()
    promises = Promises()
    errors = sweep(programs(options.start_seed, options.count, options.device), promises)
    for key, number in promises.found.most_common():
        print(number, *key, promises.examples[key])
    for text, number in errors.most_common():
        print(number, text)
    print(f"{promises.nodes} nodes, {sum(promises.found.values())} not as promised")
    return int(bool(promises.found))


if __name__ == "__main__":
    raise SystemExit(main())
