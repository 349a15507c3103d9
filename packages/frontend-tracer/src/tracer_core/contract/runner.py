"""`Runner`: what a backend returns for a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import torch

#: Called with a flat list of the graph's inputs, which it may clear to free them early, it returns
#: a flat list of the graph's outputs.
RunFunction = Callable[[list[Any]], Sequence[Any]]


def _are_indices(value: Any) -> bool:
    return isinstance(value, frozenset) and all(type(item) is int for item in value)


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
    call. Backends may subclass it to add fields of their own.

    Raises:
        TypeError: A field has a value of another type; the text names the field.
    """

    #: Takes a flat list of the graph's inputs, which it may clear to free them early; returns a flat
    #: list of the graph's outputs.
    run: RunFunction
    _: KW_ONLY
    #: Indices among `CompileSpec.mutations`: the inputs that `run` may have mutated by the time it
    #: raises, which the core restores where it then runs the program eagerly. None: unknown.
    mutated_on_error: frozenset[int] | None = None
    #: Indices of the saved outputs that `run` returns channels-last, see `OutputSpec.saved`.
    channels_last: frozenset[int] = frozenset()
    #: Required where `CompileSpec.constants` names inputs: takes these tensors in order and returns
    #: a runner, or another callable, that is specialized to their values. The core calls it, with
    #: all inputs, until a constant changes.
    bind_constants: Callable[[Sequence[torch.Tensor]], Any] | None = None
    #: Indices among `CompileSpec.constants`: the tensors that such a runner still reads. The user
    #: may free the others.
    constants_read: frozenset[int] = frozenset()
    #: Whatever `Backend.serialize` stores; the core does not read it.
    artifact: Any = field(default=None, repr=False)
    #: Set by `Backend.wrap`: a mapping that JSON can store, which `wrap` takes in place of the graph
    #: when a stored runner is loaded.
    graph_traits: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, (expected, holds) in _RULES.items():
            if not holds(value := getattr(self, name)):
                raise TypeError(f"Runner: {name}={value!r}; {expected}")

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Calls `run`."""
        return self.run(inputs)

    def with_run(self, run: RunFunction, **changes: Any) -> Self:
        """Returns a copy that calls `run`: what a wrapper of this runner returns.

        Args:
            run: What the copy calls.
            **changes: New values of other fields.

        Returns:
            A runner of the same class.
        """
        return replace(self, run=run, **changes)

    @classmethod
    def of(cls, result: Any, function: str = "compile()") -> Runner:
        """Returns what a backend's function returned as a `Runner`.

        Args:
            result: A `Runner`, or a callable, for which a `Runner` is made.
            function: The name of the backend's function, for errors.

        Returns:
            The runner.

        Raises:
            TypeError: `result` cannot be called with one list.
        """
        if not callable(result):
            wanted = "a callable that takes a list of inputs"
            raise TypeError(f"{function} returned {type(result).__name__}, not a runner: {wanted}")
        runner = result if isinstance(result, Runner) else Runner(result)
        if isinstance(getattr(runner.run, "__self__", runner.run), torch.fx.GraphModule):
            raise TypeError(
                f"{function} returned a graph, which takes its inputs one by one, not as a list: return"
                " lambda inputs: graph.forward(*inputs)"
            )
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
