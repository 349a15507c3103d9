"""Replaces scaled_dot_product_attention, and bmm/softmax/bmm written by hand, by
`packed_ops.attention` in inference.

Only in float32, without dropout, where our kernel is faster for the captured sizes, and where
nobody else reads the scores, the probabilities or the logsumexp beside the result. Terms added to
the scores are summed first, so results differ by rounding. A row without visible keys is 0 for
scaled_dot_product_attention and NaN where softmax is written out, as in eager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import attention, packed_ops
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from tracer_core.plugin_api import CompileSpec, Phase, Trait, overloads_with

Node = torch.fx.Node

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
#: Bounds of factors of the scores, so that folding them into one neither overflows nor underflows.
_MIN_SCALE, _MAX_SCALE = 1e-9, 1e9
_VIEWS = overloads_with(Trait.RESHAPES)


def with_native_attention(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with our attention."""
    targets = {node.target for node in gm.graph.nodes}
    if spec.phase is not Phase.INFERENCE or not targets & {FLASH, aten._softmax.default}:
        return gm
    editor = Editor(copy_of(gm), ())
    result = False
    for node in list(editor.graph.nodes):
        rule = _RULES.get(node.target)
        result |= rule is not None and rule(editor, node)
    return editor.gm if result else gm


def _value(node: Any, rank: int = 4) -> torch.Tensor | None:
    """Returns the node's fake value where it is a float32 tensor of this rank."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    fits = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.dim() == rank
    return value if fits else None


def _sizes(value: torch.Tensor | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value.shape))


def _pays(query: Any, key: Any, value: Any, always: bool = False) -> bool:
    """Returns whether our kernel takes these operands and, unless `always`, is the fastest."""
    values = [_value(operand) for operand in (query, key, value)]
    if any(value is None for value in values):
        return False
    q, k, v = (tuple(map(str, value.shape)) for value in values)  # type: ignore[union-attr]
    if q[:2] != k[:2] or k[:3] != v[:3] or q[3] != k[3] or "0" in (*q, *v):
        return False
    batch, heads, keys, depth = (hint(size) for size in values[1].shape)  # type: ignore[union-attr]
    queries, width = hint(values[0].shape[2]), hint(values[2].shape[3])  # type: ignore[union-attr]
    return always or attention.pays(queries, keys, depth, width, batch * heads)


def _erase_dead(editor: Editor, roots: list[Node]) -> None:
    """Erases these nodes, then their sources, where they have no users."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.op == "call_function" and not node.users and node in node.graph.nodes:
            sources = list(node.all_input_nodes)
            editor.graph.erase_node(node)
            stack.extend(sources)


# scaled_dot_product_attention ---------------------------------------------------------------------


def native_attention(editor: Editor, node: Node, always: bool = False) -> bool:
    """Replaces scaled_dot_product_attention by ours, if that is possible and (unless `always`)
    faster; returns whether it did."""
    names = ("query", "key", "value", "dropout_p", "is_causal")
    inputs = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    query, key, value = (inputs.get(name) for name in names[:3])
    mask, causal = inputs.get("attn_mask"), inputs.get("is_causal", False)
    if inputs.get("dropout_p", 0.0) != 0.0 or not _pays(query, key, value, always):
        return False
    if any(user.args[1] != 0 for user in node.users) or not node.users:
        return False
    if mask is not None and _value(mask, 2) is None and _value(mask) is None:
        return False
    assert isinstance(query, Node)
    scale = inputs.get("scale")
    depth = query.meta["val"].shape[3]
    known = (
        isinstance(depth, int)
        if scale is None
        else isinstance(scale, (int, float)) and abs(scale) <= _MAX_SCALE
    )
    if not known:  # the kernel takes the scale as a float32 constant
        return False
    new = editor.call(
        node, packed_ops.attention, query, key, value, mask, scale, bool(causal), True
    )
    for user in list(node.users):
        new.meta["val"] = user.meta["val"]
        user.replace_all_uses_with(new)
        editor.graph.erase_node(user)
    editor.graph.erase_node(node)
    return True


# matmuls and softmax ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scores:
    """What softmax reads: scale * matmul + sum(added). Mutable while the chain is read."""

    matmul: Node
    scale: float
    added: list[Node]


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _by_hand(editor: Editor, node: Node) -> bool:
    shape = _sizes(_value(node))
    x, dim, half = node.args
    if shape is None or dim not in (-1, 3) or half or not isinstance(x, Node):
        return False
    scores = _scores_of(editor, x, shape)
    result = _result_of(node, shape)
    if scores is None or result is None:
        return False
    second, result_view = result
    query = _operand(editor, scores.matmul.args[0], shape[:3], None)
    transposed = _operand(editor, scores.matmul.args[1], shape[:2], shape[3])
    value = _operand(editor, second.args[1], (*shape[:2], shape[3]), None)
    if query is None or transposed is None or value is None:
        return False
    for bmm, sizes in ((scores.matmul, shape[2:]), (second, (shape[2], _sizes(_value(value))[3]))):  # type: ignore[index]
        if _sizes(_value(bmm, 3))[1:] != sizes:  # type: ignore[index]
            return False  # a view did not merge batch and heads
    if _sizes(_value(result_view)) != (*shape[:3], _sizes(_value(value))[3]):  # type: ignore[index]
        return False
    key = editor.call(node, aten.transpose.int, transposed, 2, 3)
    if not _pays(query, key, value) or any(
        not 1 <= addend.meta["val"].dim() <= 4 for addend in scores.added
    ):
        _erase_dead(editor, [key])
        return False
    mask = None
    for addend in scores.added:
        mask = addend if mask is None else editor.call(node, aten.add.Tensor, mask, addend)
    new = editor.call(
        result_view, packed_ops.attention, query, key, value, mask, scores.scale, False, False
    )
    new.meta["val"] = result_view.meta["val"]
    result_view.replace_all_uses_with(new)
    _erase_dead(editor, [result_view])
    return True


def _scores_of(editor: Editor, x: Node, shape: tuple[str, ...]) -> _Scores | None:
    """Follows the chain from softmax's input back to the matmul; None where it does not match."""
    match = _Scores(x, 1.0, [])
    while True:
        if (
            _only_user(x) is None
            or _sizes(_value(x)) != shape
            or not _MIN_SCALE <= abs(match.scale) <= _MAX_SCALE
        ):
            return None
        if x.target is aten.add.Tensor and not x.kwargs and len(x.args) == 2 and match.scale == 1.0:
            step = _before_addition(editor, x, shape)
            if step is None:
                return None
            x, added = step
            match.added.append(added)
        elif (
            x.target in (aten.mul.Tensor, aten.div.Tensor)
            and isinstance(x.args[1], (int, float))
            and not x.kwargs
        ):
            factor = x.args[1]
            if not _MIN_SCALE <= abs(factor) <= _MAX_SCALE:
                return None
            match.scale *= factor if x.target is aten.mul.Tensor else 1 / factor
            x = x.args[0]  # type: ignore[assignment]
        elif (
            x.target in _VIEWS and isinstance(x.args[0], Node) and _value(x.args[0], 5) is not None
        ):
            step = _through_windows(editor, x, shape)
            if step is None or match.scale != 1.0:
                return None
            x, added = step
            match.added.append(added)
        elif (
            x.target in _VIEWS
            and isinstance(x.args[0], Node)
            and x.args[0].target is aten.bmm.default
        ):
            match.matmul = x.args[0]
            return match if _only_user(match.matmul) is x else None
        else:
            return None


def _before_addition(editor: Editor, x: Node, shape: tuple[str, ...]) -> tuple[Node, Node] | None:
    """Returns (scores, what is added to them)."""
    for chain, other in (x.args, x.args[::-1]):
        fits = isinstance(chain, Node) and isinstance(other, Node) and chain is not other
        if fits and _sizes(_value(chain)) == shape and _leads_to_matmul(chain):
            value = other.meta.get("val")  # type: ignore[union-attr]
            simple = (
                isinstance(value, torch.Tensor)
                and value.dtype == torch.float32
                and 1 <= value.dim() <= 4
            )
            return (chain, other) if simple else None  # type: ignore[return-value]
    return None


def _leads_to_matmul(node: Any) -> bool:
    """Checks whether a matmul is at most eight steps back."""
    for _ in range(8):
        if not isinstance(node, Node):
            return False
        if node.target is aten.bmm.default:
            return True
        if node.target is aten.add.Tensor:
            return any(_leads_to_matmul(arg) for arg in node.args)
        if node.target not in (aten.mul.Tensor, aten.div.Tensor, *_VIEWS):
            return False
        node = node.args[0]
    return False


def _through_windows(editor: Editor, x: Node, shape: tuple[str, ...]) -> tuple[Node, Node] | None:
    """Matches Swin's masks, which are added in five dimensions, (images, windows, ...). Returns
    (scores, mask in four)."""
    total = x.args[0]
    assert isinstance(total, Node)
    if (
        total.target is not aten.add.Tensor
        or total.kwargs
        or len(total.args) != 2
        or _only_user(total) is not x
    ):
        return None
    inner, mask = total.args
    value, inputs = _value(total, 5), _value(mask, 5)
    if value is None or inputs is None or not isinstance(inner, Node) or inner.target not in _VIEWS:
        return None
    before = inner.args[0]
    if (
        _only_user(inner) is not total
        or not isinstance(before, Node)
        or _sizes(_value(before)) != shape
    ):
        return None
    images, windows = value.shape[:2]
    full = isinstance(images, int) and isinstance(windows, int) and _sizes(value)[2:] == shape[1:]  # type: ignore[index]
    if not full or str(images * windows) != shape[0] or str(inputs.shape[1]) != str(windows):
        return None
    sizes = list(inputs.shape)
    if images != sizes[0]:
        mask = editor.call(x, aten.expand.default, mask, [images, *sizes[1:]])
        mask = editor.call(x, aten.clone.default, mask, memory_format=torch.contiguous_format)
    added = editor.call(x, aten.reshape.default, mask, [images * windows, *sizes[2:]])
    return before, added


def _result_of(node: Node, shape: tuple[str, ...]) -> tuple[Node, Node] | None:
    """Returns (the second matmul, its 4-d view) where only these read the probabilities."""
    here = node
    while True:
        user = _only_user(here)
        if user is None:
            return None
        if user.target is aten.bmm.default:
            break
        same = (
            user.target in (aten.expand.default, aten.clone.default)
            and _sizes(_value(user)) == shape
        )
        if not same and not (user.target in _VIEWS and _value(user, 3) is not None):
            return None
        here = user
    view = _only_user(user)
    if (
        user.args[0] is not here
        or user.args[1] is here
        or view is None
        or view.target not in _VIEWS
    ):
        return None
    sizes = _sizes(_value(view))
    return (user, view) if sizes is not None and sizes[:3] == shape[:3] else None


def _operand(editor: Editor, node: Any, first: tuple[str, ...], last: str | None) -> Node | None:
    """Returns a matmul's operand before it was viewed as 3-d. first, last: the sizes that its first
    dimensions and its last must have."""
    while isinstance(node, Node) and _value(node) is None:
        if node.target not in _VIEWS or _value(node, 3) is None:
            return None
        node = node.args[0]
    sizes = _sizes(_value(node))
    if sizes is None or sizes[: len(first)] != first or (last is not None and sizes[3] != last):
        return None
    while node.target in (aten.clone.default, aten.expand.default):
        if _sizes(_value(node.args[0])) != sizes:
            break
        node = node.args[0]
    return node  # type: ignore[no-any-return]


_RULES = {FLASH: native_attention, aten._softmax.default: _by_hand}
