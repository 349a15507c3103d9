"""Emits the lines that replay a side effect of the trace on an object.

The lines use the names in `NAMES` and run no method that a subclass may have replaced. Where the
object's old contents are not guarded, the lines are the program's own steps and right for any
contents.
"""

from __future__ import annotations

import array
import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

from tracer_core.fx_capture.object_mutations import (
    MISSING,
    Change,
    ClassAttribute,
    Content,
    ContextValue,
    Gradient,
    GradientFlag,
    Slot,
    ThreadAttribute,
)
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.fx_capture.set_order import refill
from tracer_core.guards.value_kinds import is_constant
from tracer_core.reconstruct.values import Rebuilder
from tracer_core.trace.special_methods import check_hashed_again

_ORDERED = collections.OrderedDict
_DEQUE = collections.deque


def replay(target: str, change: Change, rebuilder: Rebuilder) -> list[str]:
    """Returns the lines for one change. target: text of the object."""
    return _REPLAY[change.kind](target, change, rebuilder)


def _listed(values: Any, r: Rebuilder) -> str:
    return f"[{', '.join(map(r.value, values))}]"


def _replay_dict(target: str, change: Change, r: Rebuilder) -> list[str]:
    name = "ordered" if change.kind is _ORDERED else "dict"
    before, after, written = change.before, change.after, change.written
    check_hashed_again(r.tracer, [*after, *change.removed])
    if not change.all_contents:
        removed, stored = list(change.removed), stored_keys(change, r.tracer.provenance)
    else:
        left = [key for key in before if key in after]
        if list(after)[: len(left)] != left:
            pairs = ", ".join(f"({r.value(k)}, {r.value(v)})" for k, v in after.items())
            return [f"{name}_assign({target}, [{pairs}])"]
        removed = [key for key in before if key not in after]
        stored = [
            key for key in after if key in written or before.get(key, MISSING) is not after[key]
        ]
    lines = [f"{name}_remove({target}, {r.value(key)})" for key in removed]
    return lines + [
        f"{name}_set({target}, {r.value(key)}, {r.value(after[key])})" for key in stored
    ]


def stored_keys(change: Change, provenance: Provenance) -> list[Any]:
    """Returns the keys that a replay sets in a dictionary whose contents are not guarded as a whole:
    not those at which the program puts back what it has read there (``state[name] = buffer`` of
    optimizers), so that a guard sees an unchanged dictionary."""
    at, sources = provenance.source_of(change.obj), provenance.sources

    def is_put_back(key: Any) -> bool:
        value = change.after.get(key, MISSING)
        if at is None or key in change.removed or change.before.get(key, MISSING) is not value:
            return False
        return provenance.source_of(value) is sources.entry(at, key)

    return [key for key in change.written if not is_put_back(key)]


def _replay_list(target: str, change: Change, r: Rebuilder) -> list[str]:
    added, written = change.added, change.written
    if change.all_contents:
        size = len(change.before)
        if written or not _same_items(change.before, change.after[:size]):
            return [f"list_assign({target}, {_listed(change.after, r)})"]
        added = change.after[size:]
    elif written:
        values = ((i, change.after[i]) for i in written)
        lines = [f"list_set({target}, {i}, {r.value(value)})" for i, value in values]
        return lines + ([f"list_extend({target}, {_listed(added, r)})"] if added else [])
    return [f"list_extend({target}, {_listed(added, r)})"] if added else []


def _same_items(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _additions(change: Change) -> Iterator[tuple[str, Callable[[Any], Any], list[Any]]]:
    """Yields what a set may have been updated with: name and function of the container, items."""
    new = [item for item in change.after if item not in change.before]
    for items in (new, change.added):
        yield from (("list", list, items), ("dict_of", dict.fromkeys, items))


def _replay_set(target: str, change: Change, r: Rebuilder) -> list[str]:
    if not change.all_contents:
        check_hashed_again(r.tracer, change.added)
        return [f"set_update({target}, {_listed(change.added, r)})"] if change.added else []
    same = _same_items(change.before, change.after)  # as lists, in iteration order
    check_hashed_again(r.tracer, [] if same else change.after)
    if not same and all(map(is_constant, (*change.before, *change.after))):
        # Where a member lies may depend on one that is gone: the same table is changed likewise.
        gone = [item for item in change.before if item not in change.after]
        for name, of, items in _additions(change):
            changed = set[Any]()
            refill(changed, change.before)
            changed.update(of(items))
            changed.difference_update(gone)
            if _same_items(list(changed), change.after):
                added = [f"set_update({target}, {name}({_listed(items, r)}))"] if items else []
                removed = [f"set_remove({target}, {_listed(gone, r)})"] if gone else []
                return added + removed
    return [] if same else [f"set_assign({target}, {r.in_order(change.obj, change.after)})"]


def _replay_deque(target: str, change: Change, r: Rebuilder) -> list[str]:
    if not change.all_contents:
        return [f"deque_extend({target}, {_listed(change.added, r)})"] if change.added else []
    if not change.moved:
        pairs = zip(change.before, change.after, strict=True)
        replaced = [(i, new) for i, (old, new) in enumerate(pairs) if new is not old]
        return [f"deque_set({target}, {i}, {r.value(new)})" for i, new in replaced]
    return [f"deque_assign({target}, {_listed(change.after, r)})"]


def _replay_buffer(target: str, change: Change, r: Rebuilder) -> list[str]:
    if change.before == change.after:
        return []
    return [f"buffer_assign({target}, {r.constant(change.after)})"]


def _replay_cell(target: str, change: Change, r: Rebuilder) -> list[str]:
    if change.after is MISSING:
        return [f"{target}.cell_contents = None", f"del {target}.cell_contents"]
    return [f"{target}.cell_contents = {r.value(change.after)}"]


def _replay_slot(target: str, change: Change, r: Rebuilder) -> list[str]:
    descriptor = r.constant(change.where)
    if change.after is MISSING:
        # It may be unset already, where __delete__ alone would raise.
        return [f"{descriptor}.__set__({target}, None)", f"{descriptor}.__delete__({target})"]
    return [f"{descriptor}.__set__({target}, {r.value(change.after)})"]


def _replay_class(target: str, change: Change, r: Rebuilder) -> list[str]:
    if change.after is MISSING:
        unset = f"class_set({target}, {change.where!r}, None)"
        return [unset, f"class_delete({target}, {change.where!r})"]
    return [f"class_set({target}, {change.where!r}, {r.value(change.after)})"]


def _replay_local(target: str, change: Change, r: Rebuilder) -> list[str]:
    unset = change.after is MISSING
    value = "None" if unset else r.value(change.after)
    removed = [f"delattr({target}, {change.where!r})"] if unset else []
    return [f"setattr({target}, {change.where!r}, {value})", *removed]


def _replay_context(target: str, change: Change, r: Rebuilder) -> list[str]:
    return [f"{target}.set({r.value(change.after)})"] if change.moved else []


def _replay_gradient(target: str, change: Change, r: Rebuilder) -> list[str]:
    return [f"{target}.grad = {r.value(change.after)}"]


def _replay_gradient_flag(target: str, change: Change, r: Rebuilder) -> list[str]:
    return [f"{target}.requires_grad_({change.after})"]


def _replay_content(target: str, change: Change, r: Rebuilder) -> list[str]:
    return [f"{target}.data = {r.value(change.after)}"]


_REPLAY: dict[type, Callable[..., list[str]]] = {
    _ORDERED: _replay_dict,
    dict: _replay_dict,
    list: _replay_list,
    set: _replay_set,
    _DEQUE: _replay_deque,
    bytearray: _replay_buffer,
    array.array: _replay_buffer,
    types.CellType: _replay_cell,
    Slot: _replay_slot,
    ClassAttribute: _replay_class,
    ThreadAttribute: _replay_local,
    ContextValue: _replay_context,
    Gradient: _replay_gradient,
    GradientFlag: _replay_gradient_flag,
    Content: _replay_content,
}
