"""The only module of this package that uses private TVM names.

`translate` enters TVM's importer of exported programs below the ExportedProgram, because the
graph is exported already. Tried on apache-tvm 0.27.0."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

#: ``(importer, node) -> Relax expression``: a converter for an operator that TVM lacks or gets
#: wrong.
Converter = Callable[[Any, torch.fx.Node], Any]


@functools.cache
def _importer_class() -> Any:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return ExportedProgramImporter


@functools.cache
def converted() -> frozenset[str]:
    """Returns the names of the operators that TVM's importer converts, as ``relu.default``."""
    return frozenset(_importer_class()().convert_map)


def derived(cls: Any) -> Any:
    """Wraps a Python class so that TVM can call it."""
    from tvm.ir.utils import derived_object

    return derived_object(cls)


def theirs(importer: Any, node: torch.fx.Node) -> Any:
    """Applies TVM's own converter to a node for which this package has one."""
    return importer.theirs[getattr(node.target, "__name__", "")](node)


def _emitted(builder: Any, converter: Callable[[torch.fx.Node], Any], node: torch.fx.Node) -> Any:
    """Emits a converter's result as a variable: some of TVM's converters return an expression
    without an inferred type, which the next converter cannot read."""
    from tvm import relax

    result = converter(node)
    return builder.emit(result) if isinstance(result, relax.Call) else result


def translate(
    graph: torch.fx.Graph,
    parameters: Sequence[tuple[str, Any]],
    values: Mapping[str, Any],
    own: Mapping[str, Converter],
    frozen: Collection[str] = (),
) -> Any:
    """Returns the Relax module of a graph; its function ``main`` returns a tuple of the graph's
    outputs.

    parameters: the function's parameters, (name, Relax type). values: TIR variables of the
    sizes, for placeholders without a parameter of their name. frozen: names of parameters that
    will be constants; this package's converters find them as ``importer.frozen``. Raises what
    the importer raises."""
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
