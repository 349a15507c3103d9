"""The eager fake value of every node of a captured graph.

Uses ``meta["val"]`` where capture left it on every node; otherwise runs the graph once over fakes
and stores the values there. The values keep eager's aliasing: two of them share a storage exactly
if the tensors of the captured call do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.ops.calls import RESHAPE_IN_PLACE
from tracer_core.torch_private.needed import pytree

MISSING = object()


def attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    """Returns what a get_attr node names."""
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def captured_values(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], *, grad: bool = False
) -> Mapping[torch.fx.Node, Any]:
    """Returns the value of each node; see the module's docstring.

    grad: whether computed values have requires_grad set. Raises ValueError where `inputs` and
    placeholders differ in number.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(inputs):
        raise ValueError(
            f"the graph has {len(placeholders)} placeholders, but {len(inputs)} inputs were given"
        )
    nodes = [node for node in gm.graph.nodes if node.op != "output"]
    if all("val" in node.meta for node in nodes):
        values = {node: node.meta["val"] for node in nodes}
    else:
        values = _propagate(gm, inputs, grad)
    _refuse_reshaped_inputs(gm, values)
    return values


def _refuse_reshaped_inputs(gm: torch.fx.GraphModule, values: Mapping[torch.fx.Node, Any]) -> None:
    """Raises LoweringUnsupported if the graph changes an input's shape in place: the fake no longer
    has the input's shape.
    """
    inputs = {
        id(values[node]): node.name
        for node in gm.graph.nodes
        if node.op in ("placeholder", "get_attr")
    }
    for node in gm.graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in RESHAPE_IN_PLACE and node.args and isinstance(node.args[0], torch.fx.Node):
            changed = inputs.get(id(values[node.args[0]]))
            if changed is not None:
                raise LoweringUnsupported(
                    f"{name} changes sizes, strides or storage of the graph's input {changed}",
                    node.meta.get("user_frame") or "",
                )


def _propagate(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], grad: bool
) -> dict[torch.fx.Node, Any]:
    known = [node.meta["val"] for node in gm.graph.nodes if "val" in node.meta]
    fakes = [value for value in (*known, *inputs) if torch_private.is_fake(value)]
    mode = torch_private.fake_mode_of(fakes[0]) if fakes else torch_private.fake_tensor_mode()
    values: dict[torch.fx.Node, Any] = {}
    arguments = iter(inputs)
    with torch.set_grad_enabled(grad), torch_private.settings_restored(), mode:
        for node in gm.graph.nodes:
            if node.op == "output":
                continue
            if node.op == "placeholder":
                value = _faked(node.meta.get("val", next(arguments)), mode)
            elif node.op == "get_attr":
                value = _faked(attribute(gm, str(node.target)), mode)
            else:
                value = _run(node, values)
            values[node] = node.meta["val"] = value
    return values


def _faked(value: Any, mode: Any) -> Any:
    if isinstance(value, torch.Tensor) and not torch_private.is_fake(value):
        return torch_private.to_fake(mode, value)
    return value


def _run(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    result: Any = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = result
    symbolic = _wants_symbols(node, args, kwargs)
    with torch_private.python_dispatcher() if symbolic else contextlib.nullcontext():
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    raise LoweringUnsupported(
        f"the graph has a {node.op} node ({node.target}); lowering takes functions and methods of"
        " tensors"
    )


def _wants_symbols(node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
    """Whether the node needs torch's Python kernels.

    C++ kernels of upsampling and the like need constant sizes, and the Python kernel of dropout
    returns a copy where eager returns the tensor itself.
    """
    if "dropout" in str(getattr(node.target, "__name__", node.target)):
        return False
    return torch_private.has_symbols(pytree.arg_tree_leaves(*args, **kwargs))
