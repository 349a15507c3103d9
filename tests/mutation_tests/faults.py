"""The faults: each a small change of the tracer's source that makes some program go wrong without a
word.

In: nothing. Out: `FAULTS` by name. What always holds: the old text stands exactly once in its file,
so a fault that no longer applies is an error, not a pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """name; area: guards, replay, aliasing, segments, rebuild or effects; file: in tracer_core;
    old, new: text; since: the first Python on which it makes programs go wrong.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    since: tuple[int, int] = (3, 11)


def _guards(name: str, old: str, new: str) -> Fault:
    return Fault(name, "guards", "guards/guard.py", old, new)


def _tensor_guards(name: str, old: str, new: str) -> Fault:
    return Fault(name, "guards", "guards/tensor_guard.py", old, new)


#: Guards that are lifted: what is no longer guarded -> the text of the check.
_LIFTED = {
    "an absent key is not guarded": 'f"{g.expected!r} not in {v}"',
    "a present key is not guarded": 'f"{g.expected!r} in {v}"',
    "types are not guarded": 'f"type({v}) is {c(g.expected)}"',
    "lengths are not guarded": 'f"len({v}) == {g.expected}"',
    "keys are not guarded": "_keys(g, v, c)",
    "identity is not guarded": 'f"{v} is {c(g.expected)}"',
    "two paths to one object are not guarded": 'f"{v} is {f(g.expected)}"',
    "two objects may become one": 'f"{v} is not {f(g.expected)}"',
    "an empty cell is not guarded": 'f"is_unbound({v})"',
    "an unset slot is not guarded": 'f"is_unset({c(g.expected)}, {v})"',
    "a set slot is not guarded": 'f"not is_unset({c(g.expected)}, {v})"',
    "base classes are not guarded": 'f"same_objects({v}.__mro__, {c(g.expected)})"',
    "bytes of a buffer are not guarded": 'f"data_of({v}) == {g.expected!r}"',
}

FAULTS: dict[str, Fault] = {fault.name: fault for fault in (
    # -- guards --
    *(_guards(name, f"lambda g, v, c, f: {check}", 'lambda g, v, c, f: "True"') for name,
    check in _LIFTED.items()),
    _guards("an int equals a bool",
    'f"(type({value}) is {kind.__name__} and {value} == {literal(expected)})"',
    'f"({value} == {literal(expected)})"'),
    _guards("minus zero equals zero",
    'is float and {value} == 0.0"\n                f" and repr({value}) == {repr(expected)!r})"',
    'is float and {value} == 0.0)"'),
    _tensor_guards("the dtype of a tensor is not guarded",
    '        "dtype": f"{value}.dtype is {constant(facts.dtype)}",\n', ""),
    _tensor_guards("requires_grad is not guarded",
    '        "keys": f"keys({value}).raw_repr() == {facts.keys}",\n'
    '        "requires_grad": f"{value}.requires_grad is {facts.requires_grad}",\n', ""),
    _tensor_guards("the shape of a tensor is not guarded",
    'checks["shape"] = f"{value}.shape == {tuple(facts.shape)!r}"',
    "pass"),
    _tensor_guards("strides are not guarded", "if facts.stride is not None:", "if False:"),
    Fault("grad mode is not guarded", "guards", "execution/entry/codegen.py",
    '        f"is_grad_enabled() is {state.grad}": ("is_grad_enabled()", state.grad),\n', ""),
    Fault("a stamp never looks again", "guards", "guards/fast_path_guard.py",
    "if guard.unchanged() and (guard.rest is None or guard.rest()):", "if True:"),
    Fault("a stamp forgets what no word tells", "guards", "guards/fast_path_guard.py",
    "if guard.unchanged() and (guard.rest is None or guard.rest()):", "if guard.unchanged():"),
    Fault("changes of dictionaries are not counted", "guards", "guards/watched_fields.py",
    "self.depths[0].extend(self._counters.addresses)\n", "pass\n", (3, 13)),
    Fault("an emptied container is not counted", "guards", "guards/watched_fields.py",
    "            self._counted[id(container)] = container\n", "            pass\n", (3, 13)),
    Fault("constants are not guarded", "guards", "fx_capture/provenance.py",
    "        if is_constant(value):\n            self.guard(GuardKind.EQ, source, value)\n",
    "        if is_constant(value):\n"),
    # -- replay --
    Fault("the last item added to a list is lost", "replay", "reconstruct/replay_change.py",
    'return [f"list_extend({target}, {_listed(added, r)})"] if added else []',
          'return [f"list_extend({target}, {_listed(added[:-1], r)})"] if added else []'),
    Fault("a list assigned anew is not replayed", "replay", "reconstruct/replay_change.py",
    'return [f"list_assign({target}, {_listed(change.after, r)})"]', "return []"),
    Fault("keys are never removed", "replay", "reconstruct/replay_change.py",
    "lines = [f\"{name}_remove({target}, {r.value(key)})\" for key in removed]", "lines = []"),
    Fault("the order of a dictionary is not replayed", "replay", "reconstruct/replay_change.py",
    "if list(after)[: len(left)] != left:", "if False:"),
    Fault("sets are not replayed", "replay", "reconstruct/replay_change.py",
    "    if not change.all_contents:\n        check_hashed_again(r.tracer, change.added)\n",
    "    return []\n    if not change.all_contents:\n        check_hashed_again(r.tracer, change.added)\n"),
    Fault("deques are extended twice", "replay", "reconstruct/replay_change.py",
    'return [f"deque_extend({target}, {_listed(change.added, r)})"] if change.added else []',
          'return [f"deque_extend({target}, {_listed(change.added, r)})"] * 2 if change.added else []'),
    Fault("cells are not replayed", "replay", "reconstruct/replay_change.py",
    'return [f"{target}.cell_contents = {r.value(change.after)}"]', "return []"),
    Fault("slots are not replayed", "replay", "reconstruct/replay_change.py",
    'return [f"{descriptor}.__set__({target}, {r.value(change.after)})"]', "return []"),
    Fault("class attributes are not replayed", "replay", "reconstruct/replay_change.py",
    'return [f"class_set({target}, {change.where!r}, {r.value(change.after)})"]', "return []"),
    Fault("undo forgets cells", "effects", "fx_capture/object_mutations.py",
    "        change.obj.cell_contents = change.before\n",
    "        pass\n"),
    Fault("undo forgets lists", "effects", "fx_capture/object_mutations.py",
    "    list.__setitem__(change.obj, slice(None), change.before)\n", "    pass\n"),
    Fault("undo leaves new keys", "effects", "fx_capture/object_mutations.py",
    "            kind.pop(target, key, None)\n", "            pass\n"),
    Fault("levels of autocast stay entered after a trace", "effects", "fx_capture/fx_recorder.py",
    "        settings.nest_autocast(-self.autocast_nesting)\n", "        pass\n"),
    Fault("levels of autocast are not replayed", "replay", "execution/entry/results_and_side_effects.py",
    "        if recorder.autocast_nesting:\n", "        if False:\n"),
    # -- aliasing --
    Fault("shared memory of written inputs is not guarded", "aliasing",
    "execution/entry/entry_guards.py",
    "        if self.graph.mutated_inputs():\n            tensors =",
    "        if False:\n            tensors ="),
    Fault("changed objects may be others that were read", "aliasing", "execution/entry/entry_guards.py",
    "[other for other, value in read if value is not holder]", "[]"),
    Fault("lists that are one become two", "rebuild", "reconstruct/emitter.py",
    "        self._memo[id(obj)] = text\n",
    "        if type(obj) is not list:\n            self._memo[id(obj)] = text\n"),
    # -- segments --
    Fault("a local that a loop reads later is dropped", "segments", "bytecode/code.py",
    "            if has_target[i]:\n                out |= live[args[i]]\n", ""),
    Fault("locals of handlers are dropped", "segments", "bytecode/code.py",
    "                out |= live[target]\n            if names[i] == \"STORE_FAST\":",
    "                pass\n            if names[i] == \"STORE_FAST\":"),
    Fault("the breaking instruction runs twice", "segments", "execution/entry/resume_function.py",
    "        returned, value = machine.step(frames)\n",
    "        machine.step(frames_of(self.layouts, values))\n        returned, value = machine.step(frames)\n"),
    Fault("a graph runs twice", "segments", "execution/entry/graph_call.py", 'f"try: y = {self._graph_call(inputs)}"',
    'f"try: {self._graph_call(inputs)}; y = {self._graph_call(inputs)}"'),
    Fault("settings are left as the trace found them", "segments", "execution/entry/builder.py",
    "entry.body += [*state.settings(), state.result]", "entry.body += [state.result]"),
    Fault("the exception being handled is lost at a break", "segments", "bytecode/resume_points.py",
    "    values += frame.exceptions\n",
    "    values += [ValueError('lost') for _ in frame.exceptions]\n"),
    Fault("attributes of rebuilt functions are lost", "rebuild", "reconstruct/values.py",
    "self._set_annotations(name, obj))\n        if obj.__dict__:",
    "self._set_annotations(name, obj))\n        if False:"),
    Fault("keyword defaults of functions are lost", "rebuild", "reconstruct/values.py",
    '    "__kwdefaults__",\n', ""),
    Fault("maxlen of a deque is lost", "rebuild", "reconstruct/containers.py", ", {obj.maxlen!r})",
    ", None)"),
    # -- effects --
    Fault("list.append changes nothing known", "effects", "trace/save_before_mutation.py",
    "            if not change.all_contents:\n                change.added.extend(values)\n", ""),
    Fault("containers are changed without being saved", "effects", "trace/save_before_mutation.py",
    "            known = self._begin(target)\n            known.all_contents = True\n",
    "            return\n"),
    Fault("a stored key is not noted", "effects", "fx_capture/object_mutations.py",
    "        self.written.setdefault(key)\n",
    "        pass\n"),
    Fault("a new value is guarded as an old one", "effects", "trace/attributes.py",
    "            if change is not None and change.decided(name):\n                return value\n",
    ""),
)}  # fmt: skip
