"""`Runner`: what a backend returns for a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch

#: Called with a flat list of the graph's inputs, which it may clear to free them early, it returns
#: a flat list of the graph's outputs.
RunFunction = Callable[[list[Any]], Sequence[Any]]


def _are_indices(value: Any) -> bool:
    return isinstance(value, frozenset) and all(type(one) is int for one in value)


#: What a field of `Runner` may be, in words and as a check.
_INDICES = "a frozenset of indices"
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "run": ("a callable that takes a list of inputs", callable),
    "mutated_on_error": (f"None or {_INDICES}", lambda value: value is None or _are_indices(value)),
    "channels_last": (_INDICES, _are_indices),
    "bind_constants": ("None or a callable", lambda value: value is None or callable(value)),
    "constants_read": (_INDICES, _are_indices),
    "graph_traits": ("None or a mapping", lambda value: isinstance(value, Mapping | None)),
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Runner:
    """A compiled graph: what `Backend.compile` returns. All fields but `run` are optional.

    Calling a `Runner` calls its `run`; the core calls `run` itself, so the object costs nothing per
    call. Backends may subclass it to add fields of their own. Raises TypeError, which names the
    field, for a value of another type.

    run: takes a flat list of the graph's inputs, which it may clear to free them early, and returns
    a flat list of the graph's outputs.
    mutated_on_error: the inputs (indices among `CompileSpec.mutations`) that `run` may already have
    mutated when it raises. Where the program then runs in the graph's place, the core restores
    these only. None: not known.
    channels_last: indices of the saved outputs that `run` returns channels-last, see
    `OutputSpec.saved`.
    bind_constants: ``(tensors) -> a runner or another callable``, required where
    `CompileSpec.constants` names inputs: specializes the graph to the values of these inputs, given
    in their order. The core calls the result, with all inputs, as long as no constant changes.
    constants_read: positions among the constants of the tensors that such a result still reads
    itself. The user may give back the memory of the others.
    artifact: whatever `Backend.serialize` stores; the core hands it on unseen.
    graph_traits: set by `Backend.wrap`, a mapping that JSON can store: what `wrap` takes in the
    graph's place where a stored runner is restored.
    """

    run: RunFunction
    _: KW_ONLY
    mutated_on_error: frozenset[int] | None = None
    channels_last: frozenset[int] = frozenset()
    bind_constants: Callable[[Sequence[torch.Tensor]], Any] | None = None
    constants_read: frozenset[int] = frozenset()
    artifact: Any = field(default=None, repr=False)
    graph_traits: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, (expected, holds) in _RULES.items():
            if not holds(value := getattr(self, name)):
                raise TypeError(f"Runner: {name}={value!r}; {expected}")

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return self.run(inputs)

    def with_run(self, run: RunFunction, **changes: Any) -> Self:
        """Returns a copy that calls `run`, its other fields as they are or as `changes` say: what a
        wrapper of this runner returns."""
        return replace(self, run=run, **changes)

    @classmethod
    def of(cls, made: Any, function: str = "compile()") -> Runner:
        """Returns `made`, which a backend's function returned, as a `Runner`: a plain callable
        becomes one. function: its name in errors. Raises TypeError where `made` cannot be called
        with one list."""
        if not callable(made):
            wanted = "a callable that takes a list of inputs"
            raise TypeError(f"{function} returned {type(made).__name__}, not a runner: {wanted}")
        runner = made if isinstance(made, Runner) else Runner(made)
        try:
            signature = inspect.signature(runner.run)
        except (TypeError, ValueError):  # written in C
            return runner
        try:
            signature.bind([])
        except TypeError as error:
            reason = f"cannot be called with one list of inputs: it takes {signature}"
            raise TypeError(f"{function} returned a runner that {reason}") from error
        return runner


#: The runner of a graph without operators.
NOTHING = Runner(lambda inputs: ())
