"""The one door to names that TVM does not promise to keep.

Out: `translate`, an fx graph of ATen operators as a Relax module, and which operators TVM's
importer has converters for. It is TVM's own importer for exported programs, entered below the
ExportedProgram: the graph is exported already.

Tried on apache-tvm 0.27.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

#: ``(importer, arguments) -> Relax expression``: our converters, for operators that TVM lacks or
#: gets wrong.
Converter = Callable[[Any, torch.fx.Node], Any]


@functools.cache
def _importer_class() -> Any:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return ExportedProgramImporter


@functools.cache
def converted() -> frozenset[str]:
    """Names of the operators that TVM's importer converts, as ``relu.default``."""
    return frozenset(_importer_class()().convert_map)


def derived(cls: Any) -> Any:
    """A class of ours that TVM calls, as TVM wants it."""
    from tvm.ir.utils import derived_object

    return derived_object(cls)


def theirs(importer: Any, node: torch.fx.Node) -> Any:
    """What TVM's own converter makes of a node for which we have one."""
    return importer.theirs[getattr(node.target, "__name__", "")](node)


def _emitted(builder: Any, converter: Callable[[torch.fx.Node], Any], node: torch.fx.Node) -> Any:
    """What a converter makes, as a variable: some of TVM's give an expression whose type nobody has
    inferred, which the next converter cannot read."""
    from tvm import relax

    made = converter(node)
    return builder.emit(made) if isinstance(made, relax.Call) else made


def translate(
    graph: torch.fx.Graph,
    parameters: Sequence[tuple[str, Any]],
    values: Mapping[str, Any],
    own: Mapping[str, Converter],
    frozen: Collection[str] = (),
) -> Any:
    """The Relax module of a graph; its function ``main`` returns a tuple of the graph's outputs.

    parameters: the function's parameters, (name, Relax type). values: what placeholders without a
    parameter of their name stand for (sizes: TIR variables). frozen: names of parameters that will
    be constants; converters of ours find them as ``importer.frozen``. Raises what the importer
    raises.
    """
    from tvm import relax

    importer = _importer_class()()
    importer.theirs = dict(importer.convert_map)
    importer.frozen = frozenset(frozen)
    for name, converter in own.items():
        importer.convert_map[name] = functools.partial(converter, importer)
    importer.block_builder = builder = relax.BlockBuilder()
    for name, converter in importer.convert_map.items():
        importer.convert_map[name] = functools.partial(_emitted, builder, converter)
    variables = {name: relax.Var(name, kind) for name, kind in parameters}
    nodes = list(graph.nodes)
    with builder.function(name="main", params=list(variables.values())):
        with builder.dataflow():
            results = importer._translate_fx_graph(None, nodes, {**variables, **values})
            result = builder.emit_output(relax.Tuple(list(results)))
        builder.emit_func_output(result)
    return builder.get()
