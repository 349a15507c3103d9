"""Replicates the kernels and operator calls of four equal instances of a subgraph for all
instances.

In: the groups and kernels of a `Outline`, and how its nodes were lowered. Out: the program and plan
of the whole graph. What always holds: the groups of the second and the third instance are equal in
kind, text, sizes and order, up to a one-to-one renaming of buffers, and so are the views by which
each instance hands its results to the next. Each middle instance is then the third one with its own
buffers and inputs. Anything else raises `NotEqual`, and the whole graph is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from inductor_backend.ir.graph_meta import instance_of
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import BufferKind, ExternNode, LoopProgram, Node, Strided
from inductor_backend.ir.views import Ref
from inductor_backend.kernels.selection import KernelChoice
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.passes.outline import Outline, whole_of
from inductor_backend.passes.repeated_subgraphs import LOWERED
from inductor_backend.schedule.fusion import FusionPlan, Group

#: The instance that the other middle ones are copies of, and the last of the four.
THIRD, LAST = LOWERED - 2, LOWERED - 1


class NotEqual(Exception):
    """Raised, with the reason, when the instances cannot be replicated."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The schedule of a cut graph with its generated kernels."""

    program: LoopProgram
    plan: FusionPlan
    #: One a group of the plan.
    kernels: Sequence[KernelSource | None]
    choices: dict[str, KernelChoice]
    lowered: GraphLowering


def replicate(outline: Outline, scheduled: Scheduled) -> list[KernelSource | None]:
    """Turns program, plan and choices into the whole graph's, and returns its kernels. Raises
    NotEqual before it changes anything.
    """
    names = _Names(outline, scheduled)
    kinds = _in_order(
        [
            names.kind(group, kernel)
            for group, kernel in zip(scheduled.plan.groups, scheduled.kernels, strict=True)
        ]
    )
    runs = _paired(kinds)
    for second, third in runs:
        for a, b in zip(second, third, strict=True):
            names.pair_groups(a, b)
    names.pair_results()
    outputs = names.outputs()
    return _written(names, kinds, {third[0]: third for _, third in runs}, outputs)


def _in_order(kinds: Sequence[int | None]) -> list[int | None]:
    """Counts a group that precedes one of the instance before as that one's: a product of the next
    layer that a kernel of both needs. Where kinds fall by more than one, all instances begin anew (with
    the results that are laid out at the end). Raises NotEqual for groups of three instances that mix.
    """
    result = list(kinds)
    least = after = LAST
    for place in reversed(range(len(kinds))):
        kind = kinds[place]
        if kind is None:
            continue
        least = kind if kind > after + 1 else min(kind, least)
        if kind > least + 1:
            raise NotEqual("groups of several instances mix")
        result[place], after = least, kind
    return result


def _paired(kinds: Sequence[int | None]) -> list[tuple[range, range]]:
    """Pairs each run of the second instance's groups with the third's, which must follow it."""
    stretches: list[range] = []
    for place, kind in enumerate(kinds):
        if stretches and kinds[place - 1] == kind:
            stretches[-1] = range(stretches[-1].start, place + 1)
        else:
            stretches.append(range(place, place + 1))
    result = []
    for at, stretch in enumerate(stretches):
        if kinds[stretch.start] == THIRD - 1:
            after = stretches[at + 1] if at + 1 < len(stretches) else range(0)
            if len(after) != len(stretch) or kinds[after.start] != THIRD:
                raise NotEqual(
                    "the third instance does not follow the second one, or is no copy of it"
                )
            result.append((stretch, after))
    if sum(len(third) for _, third in result) != sum(kind == THIRD for kind in kinds):
        raise NotEqual("the third instance has kernels that the second one has not")
    return result


class _Names:
    """Maps the buffers of one instance to those of the next. Mutable: pairs are added as they are
    found.

    copies: name of a buffer of an instance that was not lowered -> the third instance's buffer.
    number: buffer -> the instance (of four) whose nodes made it. inputs: for each real instance,
    the graph inputs that it reads in place of those of the third. roles: input -> the instances of
    the four that read it, and as what.
    """

    def __init__(self, outline: Outline, scheduled: Scheduled) -> None:
        self.outline, self.scheduled, self.program = outline, scheduled, scheduled.program
        self.groups, self.kernels = scheduled.plan.groups, scheduled.kernels
        self.number = scheduled.lowered.instances
        self.count = outline.repeats.count
        self.next: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.inputs = self._inputs()
        self.roles: dict[str, set[tuple[int, str]]] = {}
        for number, real in enumerate((*range(LAST), self.count - 1)):
            for role, name in self.inputs[real].items():
                self.roles.setdefault(name, set()).add((number, role))
        self.shared = {
            role for role in self.inputs[THIRD] if all(value[role] == role for value in self.inputs)
        }
        self.places = {
            node.name: place[0]
            for node in scheduled.lowered.env
            if (place := instance_of(node)) is not None
        }

    def _inputs(self) -> list[dict[str, str]]:
        env = self.scheduled.lowered.env
        named: dict[Any, str] = {}
        for node, value in env.items():
            full = whole_of(node)
            if full is not None and isinstance(value, Ref):
                named[full] = value.buffer.name
        result = []
        for real in range(self.count):
            nodes = self.outline.repeats.inputs(real)
            if nodes is None or any((a in named) != (b in named) for a, b in nodes.items()):
                raise NotEqual(
                    f"instance {real} reads its inputs in another way than the third one"
                )
            if any(a is not b for a, b in nodes.items() if a not in named):
                raise NotEqual(f"instance {real} reads another number than the third one")
            result.append({named[a]: named[b] for a, b in nodes.items() if a in named})
        return result

    # where a group belongs ------------------------------------------------------------------------

    def kind(self, group: Group, kernel: KernelSource | None) -> int | None:
        """Returns the first instance that a group writes for, or None for a group outside the
        instances. Raises NotEqual for a group that works for instances that lie apart, that is
        ordered or has side effects, or that uses a middle instance from outside.
        """
        writes = [name for node in group.nodes for name in node.writes]
        numbers = {self.number.get(name) for name in writes}
        known = {number for number in numbers if number is not None}
        touched = kernel.pointers if kernel is not None else (*group.nodes[0].reads(), *writes)
        reach = {number for number in map(self.number.get, touched) if number is not None}
        inlined = {
            self.places[origin.fx]
            for loop in group.loops
            for origin in loop.origins
            if origin.fx in self.places
        }
        if not known:
            if not reach <= {0, LAST} or not inlined <= {LAST}:
                raise NotEqual("something outside works with what an instance in the middle made")
            return None
        kind = min(known)
        near = {kind - 1, kind, kind + 1}
        if (
            not known | inlined <= near
            or not reach <= near | {0}
            or (None in numbers and kind not in (0, LAST))
        ):
            raise NotEqual("a kernel works for instances that lie apart")
        if any(node.after for node in group.nodes) or any(
            self.program.buffers[name].storage != name or name in self.program.extends
            for name in writes
        ):
            raise NotEqual("an instance writes to memory that buffers share")
        extern = group.extern
        if extern is not None and (extern.sequential or extern.in_place is not None):
            raise NotEqual("an instance draws random numbers or writes in place")
        return kind

    # pairs ----------------------------------------------------------------------------------------

    def pair(self, a: str, b: str) -> None:
        """Records that b is to the third instance what a is to the second."""
        first, second = self.number.get(a), self.number.get(b)
        if a == b:
            if first not in (None, 0) or (a in self.roles and a not in self.shared):
                raise NotEqual(f"{a} is read by two instances")
            return
        if first is None or second is None:
            self._role(a, b)
            return
        if (
            second != first + 1
            or self.next.setdefault(a, b) != b
            or self.before.setdefault(b, a) != a
        ):
            raise NotEqual(f"{a} and {b} do not pair up")
        item, other = self.program.buffers[a], self.program.buffers[b]
        same = item.dtype == other.dtype and item.layout == other.layout and item.kind is other.kind
        if not same or (a in self.program.output_names) != (b in self.program.output_names):
            raise NotEqual(f"{a} and {b} are stored in different ways")

    def _role(self, a: str, b: str) -> None:
        """Checks that two paired inputs are read in the same role by consecutive instances."""
        mine, theirs = self.role_of(a), self.role_of(b)
        if mine is None or theirs is None or mine[1] != theirs[1] or theirs[0] != mine[0] + 1:
            raise NotEqual(f"{a} and {b} are not the same input of two instances")

    def role_of(self, name: str) -> tuple[int, str] | None:
        """Returns the (instance, role) that reads an input, or None for an input that no instance
        reads itself, or that all read; raises NotEqual for one with several roles.
        """
        roles = self.roles.get(name, set())
        if not roles or name in self.shared:
            return None
        if len(roles) > 1:
            raise NotEqual(f"the input {name} is read in several ways")
        return next(iter(roles))

    def pair_groups(self, a: int, b: int) -> None:
        """Checks that the two groups do the same, and pairs their buffers."""
        kernel, other = self.kernels[a], self.kernels[b]
        if kernel is not None and other is not None:
            if len(kernel.pointers) != len(other.pointers) or form(kernel) != form(other):
                raise NotEqual(f"kernels differ: {kernel.label} and {other.label}")
            for first, second in zip(kernel.pointers, other.pointers, strict=True):
                self.pair(first, second)
            return
        left, right = self.groups[a].extern, self.groups[b].extern
        if left is None or right is None:
            raise NotEqual("a kernel and an operator pair up")
        self._pair_externs(left, right)

    def _pair_externs(self, a: ExternNode, b: ExternNode) -> None:
        simple = [
            (
                n.target,
                n.unpack,
                n.fallback,
                n.epilogue,
                n.last_epilogue,
                self.scheduled.choices[n.name],
                tuple(n.kwargs),
                n.origin.op,
            )
            for n in (a, b)
        ]
        if simple[0] != simple[1]:
            raise NotEqual(f"{a.target} and {b.target} are called in different ways")
        self.pair_values(
            (a.args, *a.kwargs.values(), a.residual, a.outputs),
            (b.args, *b.kwargs.values(), b.residual, b.outputs),
        )

    def pair_values(self, a: Any, b: Any) -> None:
        """Pairs arguments, results and views of any structure. A string is a buffer name or a
        constant.
        """
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
            for item, other in zip(a, b, strict=True):
                self.pair_values(item, other)
        elif isinstance(a, Strided) and isinstance(b, Strided) and a.layout == b.layout:
            self.pair(a.buffer, b.buffer)
        elif isinstance(a, Ref) and isinstance(b, Ref) and (a.sizes, a.index) == (b.sizes, b.index):
            self.pair(a.buffer.name, b.buffer.name)
        elif isinstance(a, str) and isinstance(b, str) and a in self.program.buffers:
            self.pair(a, b)
        elif (
            type(a) is not type(b)
            or repr(a) != repr(b)
            or isinstance(a, (Ref, Strided, list, tuple))
        ):
            raise NotEqual(f"{a!r} and {b!r} differ")

    def pair_results(self) -> None:
        """Checks that each instance hands its results to the next through the same views."""
        values = {
            place: value
            for node, value in self.scheduled.lowered.env.items()
            if (place := instance_of(node)) is not None
        }
        repeats = self.outline.repeats
        inside = {node: at for at, node in enumerate(repeats.calls)}
        first = repeats.instance(1)
        for offset, at in enumerate(first):
            if all(inside.get(user, first.start) in first for user in repeats.calls[at].users):
                # its own instance reads it, and the graph's outputs, for which see `outputs`
                continue
            if any((number, offset) not in values for number in range(LAST)):
                raise NotEqual("what an instance hands to the next one was rewritten")
            for number in range(LAST - 1):
                self.pair_values(values[number, offset], values[number + 1, offset])

    # names in the whole program -------------------------------------------------------------------

    def image(self, name: str, real: int) -> str:
        """Returns the name, in instance `real`, of what a group of the third instance reads or
        writes as `name`.
        """
        number = self.number.get(name)
        if number == 0:
            return name
        if number is None:
            role = self.role_of(name)
            return name if role is None else self.inputs[real + role[0] - THIRD][role[1]]
        if (number == 1 and name not in self.next) or (number == LAST and name not in self.before):
            raise NotEqual(f"{name} has no counterpart in the third instance")
        template = self.next[name] if number == 1 else self.before[name] if number == LAST else name
        return self.named(template, real + number - THIRD)

    def named(self, template: str, real: int) -> str:
        """Returns the third instance's buffer in instance `real`. Constants that an instance
        computes for itself read nothing, so all instances have the same.
        """
        if real == THIRD or self.program.buffers[template].kind is BufferKind.INPUT:
            return template
        if real == THIRD - 1:
            return self.before[template]
        if real == self.count - 1:
            return self.next[template]
        name = f"{template}_r{real}"
        self.copies[name] = template
        return name

    def at_the_end(self, name: str) -> str:
        """Returns the last instance's name for a buffer of the third, which precedes it in the cut
        graph.
        """
        number = self.number.get(name)
        if number == THIRD:
            return self.named(name, self.count - 2)
        role = self.role_of(name) if number is None else None
        if role is None or role[0] == LAST:
            return name
        if role[0] != THIRD:
            raise NotEqual(f"the last instance reads {name}")
        return self.inputs[self.count - 2][role[1]]

    def outputs(self) -> list[Any]:
        """Returns the outputs of the whole program."""
        small = self.program.outputs
        (returned,) = self.scheduled.lowered.gm.graph.find_nodes(op="output")[0].args
        owner = [
            place[0] if (place := instance_of(item)) is not None else None for item in returned
        ]
        middle = {
            number: [value for value, mine in zip(small, owner, strict=True) if mine == number]
            for number in (1, THIRD)
        }
        self.pair_values(middle[1], middle[THIRD])
        result: list[Any] = []
        for where in self.outline.returned:
            if isinstance(where, tuple):
                result.append(
                    renamed(
                        middle[THIRD][where[2]], partial(self.image, real=where[0]), self.program
                    )
                )
                continue
            number, names = owner[where], {self.number.get(name) for name in _names(small[where])}
            if number is not None and where in self.program.channels_last:
                raise NotEqual("an instance returns an image channels-last")
            if number in (None, LAST) and not names <= {None, 0, LAST}:
                raise NotEqual("an output is what an instance in the middle made")
            result.append(small[where])
        return result


def note_instances(program: LoopProgram, instances: dict[str, int], new: Sequence[str]) -> None:
    """Adds to `instances` the buffers in `new`, which nodes of the graph's instances were split
    into: what a node was split into belongs to its instance."""
    readers: dict[str, list[Node]] = {}
    for node in program.nodes:
        for name in node.reads():
            readers.setdefault(name, []).append(node)
    # parts are read by what was made after them, or by the node that was split
    for name in reversed(new):
        result = {instances.get(other) for node in readers[name] for other in node.writes}
        (number,) = result if len(result) == 1 else (None,)
        if number is not None:
            instances[name] = number


def form(kernel: KernelSource) -> KernelSource:
    """Returns what is compared of a kernel: everything but its name and its buffers."""
    return replace(kernel, pointers=(), label="")


def _names(value: Any) -> list[str]:
    return (
        [value.buffer] if isinstance(value, Strided) else [value] if isinstance(value, str) else []
    )


def renamed(value: Any, to: Any, program: LoopProgram) -> Any:
    """Renames the buffers in arguments and outputs."""
    if isinstance(value, Strided):
        return Strided(to(value.buffer), value.layout)
    if isinstance(value, str):
        return to(value) if value in program.buffers else value
    if isinstance(value, (list, tuple)):
        return type(value)(renamed(item, to, program) for item in value)
    return value


def _written(
    names: _Names, kinds: Sequence[int | None], thirds: dict[int, range], outputs: list[Any]
) -> list[KernelSource | None]:
    """Builds groups, kernels, buffers, choices and outputs of the whole graph before anything is
    changed.
    """
    program, choices = names.program, dict(names.scheduled.choices)
    groups: list[Group] = []
    kernels: list[KernelSource | None] = []

    def add(place: int, to: Any, suffix: str) -> None:
        group, kernel = names.groups[place], names.kernels[place]
        if kernel is not None:
            kernels.append(replace(kernel, pointers=tuple(map(to, kernel.pointers))))
            groups.append(group)
            return
        old = group.extern
        assert old is not None
        new = replace(
            old,
            name=old.name + suffix,
            args=renamed(old.args, to, program),
            kwargs={key: renamed(value, to, program) for key, value in old.kwargs.items()},
            residual=renamed(old.residual, to, program),
            outputs=renamed(old.outputs, to, program),
        )
        choices[new.name] = names.scheduled.choices[old.name]
        kernels.append(None)
        groups.append(replace(group, nodes=[new]))

    place = 0
    while place < len(kinds):
        if place in thirds:
            for real in range(THIRD, names.count - 1):
                for first in thirds[place]:
                    add(first, partial(names.image, real=real), f"_r{real}")
            place = thirds[place].stop
            continue
        add(place, names.at_the_end if kinds[place] == LAST else str, "")
        place += 1
    for name, template in names.copies.items():
        program.buffers[name] = replace(program.buffers[template], name=name, storage=name)
    names.scheduled.plan.groups[:] = groups
    names.scheduled.choices.update(choices)
    program.outputs[:] = outputs
    program.channels_last = {
        at for at, item in enumerate(names.outline.returned) if item in program.channels_last
    }
    program.output_names = {name for item in outputs for name in _names(item)}
    return kernels
