"""Replaces attention masks that are the same in every call by the `is_causal` flag on GPUs, where
they are causal or hide nothing.

Programs that look for packed sequences (transformers' Llama) pass the causal mask as a tensor:
reading it takes several times as long as flash attention, which skips hidden elements. A mask is
replaced only where it depends on no input, was evaluated, and every element agrees with the flag;
only for attention without dropout, square, of static sizes.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.limits import MAX_MASK_ELEMENTS
from inductor_backend.passes.constant_subgraph import made_of
from inductor_backend.passes.fx_edit import Editor, aten, copy_of, makes_constants
from inductor_backend.torch_private import are_known_to_be
from tracer_core.plugin_api import CompileSpec, Phase, has_effect, logger

#: Operators with a mask as argument 3 -> the positions of dropout and is_causal.
MASKED = {
    aten._scaled_dot_product_efficient_attention.default: (5, 6),
    aten._scaled_dot_product_cudnn_attention.default: (5, 6),
}

#: What torch writes for hidden elements when it converts boolean masks for cuDNN (torch 2.11).
HIDDEN_FROM_CUDNN = -65504.0


Node = torch.fx.Node


def with_causal_masks(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with such masks replaced (inference only)."""
    if spec.phase is not Phase.INFERENCE:
        return gm
    known = _known(gm.graph)
    # (mask, operator) -> the result of `_meaning`
    result: dict[tuple[Node, Any], bool | None] = {}
    for node in gm.graph.nodes:
        if _is_additive(node) and node.args[3] in known:
            mask, key = node.args[3], (node.args[3], node.target)
            if key not in result:
                result[key] = _meaning(gm, _whole(mask), node.target)
    if all(meaning is None for meaning in result.values()):
        return gm
    editor = Editor(copy_of(gm), ())
    copies = dict(zip(gm.graph.nodes, list(editor.graph.nodes), strict=True))
    for node in gm.graph.nodes:
        meaning = result.get((node.args[3], node.target)) if _is_additive(node) else None
        if meaning is not None:
            _replace(editor, copies[node], meaning)
    editor.graph.eliminate_dead_code()
    return editor.gm


def _is_additive(node: Node) -> bool:
    """Checks for a square attention with a mask and no dropout, of which only result 0 is used."""
    if (
        node.op != "call_function"
        or node.target not in MASKED
        or not isinstance(node.args[3], Node)
    ):
        return False
    dropout, causal = (
        node.args[place] if place < len(node.args) else 0 for place in MASKED[node.target]
    )
    query, key = (node.args[place].meta["val"] for place in (0, 1))  # type: ignore[union-attr]
    square = isinstance(query.shape[-2], int) and are_known_to_be(
        query.shape[-2:-1], key.shape[-2:-1]
    )
    alone = all(user.target is not None and user.args[1:] == (0,) for user in node.users)
    return bool(dropout == 0 and not causal and square and alone)


def _known(graph: torch.fx.Graph) -> set[Node]:
    """Returns the nodes of static sizes whose value is the same in every call."""
    nodes: set[Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not all(
            isinstance(size, int) for size in value.shape
        ):
            continue
        if node.op == "get_attr" or makes_constants(node):
            nodes.add(node)
        elif node.op == "call_function" and node.all_input_nodes:
            fixed = hasattr(node.target, "_schema") and not has_effect(node.target)
            if fixed and nodes.issuperset(node.all_input_nodes):
                nodes.add(node)
    return nodes


def _whole(mask: Node) -> Node:
    """Returns the mask before `expand` along its leading dimensions."""
    while mask.target is aten.expand.default and isinstance(mask.args[0], Node):
        if not are_known_to_be(mask.args[0].meta["val"].shape[-2:], mask.meta["val"].shape[-2:]):
            break
        mask = mask.args[0]
    return mask


def _meaning(gm: torch.fx.GraphModule, mask: Node, reader: Any) -> bool | None:
    """Returns True for a causal mask, False for one that hides nothing, None for any other."""
    fake = mask.meta["val"]
    if fake.dim() < 2 or fake.shape[-1] != fake.shape[-2] or fake.numel() > MAX_MASK_ELEMENTS:
        return None
    value = _computed(gm, mask)
    if value is None:
        return None
    visible = value if value.dtype is torch.bool else value == 0
    if value.dtype is not torch.bool and not torch.equal(_hidden(value, reader), ~visible):
        return None
    if bool(visible.all()):
        return False
    size = visible.shape[-1]
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    return True if torch.equal(visible, causal.expand_as(visible)) else None


def _hidden(numbers: torch.Tensor, reader: Any) -> torch.Tensor:
    """Returns where a float mask hides an element. (A causal mask leaves each row a visible
    element, beside which cuDNN's -65504 vanishes in softmax.)"""
    hidden = numbers == -torch.inf
    if reader is aten._scaled_dot_product_cudnn_attention.default:
        hidden |= numbers == torch.tensor(HIDDEN_FROM_CUDNN, dtype=numbers.dtype)
    return hidden


def _computed(gm: torch.fx.GraphModule, wanted: Node) -> torch.Tensor | None:
    """Evaluates the node on the CPU; None where the CPU cannot."""
    needed = made_of([wanted])
    values: dict[Node, Any] = {}
    here = {"device": torch.device("cpu")}
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for node in gm.graph.nodes:
                if node not in needed:
                    continue
                if node.op == "get_attr":
                    values[node] = _attribute(gm, node).cpu()
                    continue
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(
                    *args, **{**kwargs, **(here if "device" in kwargs else {})}
                )
    except (RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        logger().info("an attention's mask stays a tensor: %s", error)
        return None
    value = values[wanted]
    return value if type(value) is torch.Tensor else None  # else computed under a user's mode


def _attribute(gm: torch.fx.GraphModule, node: Node) -> torch.Tensor:
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value


def _replace(editor: Editor, node: Node, causal: bool) -> None:
    rest: list[Any]
    query, key, value = node.args[:3]
    scale = {name: value for name, value in node.kwargs.items() if name == "scale"}
    if _has_flash(*(operand.meta["val"] for operand in (query, key, value))):  # type: ignore[union-attr]
        target, rest = aten._scaled_dot_product_flash_attention.default, [0.0, causal, False]
    else:
        target, rest = (
            aten._scaled_dot_product_efficient_attention.default,
            [None, False, 0.0, causal],
        )
    result = editor.call(node, target, query, key, value, *rest, **scale)
    node.replace_all_uses_with(result)
    editor.graph.erase_node(node)


def _has_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Checks that flash attention, which torch would choose without a mask, takes these tensors."""
    available = getattr(torch.backends.cuda, "is_flash_attention_available", None)
    if available is None or not available() or not torch.backends.cuda.flash_sdp_enabled():
        return False
    if query.dtype not in (torch.float16, torch.bfloat16) or not all(
        are_known_to_be(query.shape, other.shape) for other in (key, value)
    ):
        return False
    has_all = all(operand.stride(-1) == 1 for operand in (query, key, value))
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return has_all and fits and 0 not in query.shape and generation(query.device) >= 8


def generation(device: torch.device) -> int:
    """Returns the major compute capability; 0 where graphs are compiled without a GPU."""
    return torch.cuda.get_device_capability(device)[0] if torch.cuda.is_available() else 0
