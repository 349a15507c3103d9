"""Makes custom operators for user-defined Triton kernels.

The operator launches the kernel on copies of the tensors that it writes and returns the copies;
`written` finds those parameters in the kernel's source. Two kernels never share an operator name.
There is no operator where the source does not show which parameters are written.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

#: Functions of triton.language that write through their first argument.
_WRITES = frozenset(
    {"store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
    "atomic_xchg", "atomic_cas"}
)  # fmt: skip

#: Functions that write or make pointers in ways that the analysis does not follow.
_HIDING = frozenset(
    {
        "pointer_type",
        "inline_asm_elementwise",
        "make_tensor_descriptor",
        "_experimental_make_tensor_descriptor",
    }
)

#: Builtins that a kernel may call.
_BUILTIN_CALLS = frozenset({"range", "min", "max", "int", "float", "len", "abs"})

#: Methods of blocks that only read.
_READING_METHODS = frozenset(
    {"to", "sum", "max", "min", "load", "trans", "reshape", "broadcast_to", "expand_dims", "cast"}
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument; `text` distinguishes the equal values True and 1, 0.0 and -0.0."""

    value: Any = field(compare=False)
    text: str


@dataclass(frozen=True, slots=True)
class LaunchLayout:
    """The parameters of a launch, in order: (name, kind, constant). kind: Tensor, SymInt, float,
    bool, or constant. options: such as num_warps. configs: an autotuner's choices, each with its
    own grid; without an autotuner one empty config."""

    parameters: tuple[tuple[str, str, Constant | None], ...]
    options: tuple[tuple[str, Constant], ...]
    configs: tuple[tuple[tuple[str, Constant], ...], ...] = ((),)


class Unclear(Exception):
    """Raised where a launch cannot be an operator; the message says why."""


def function_of(kernel: Any) -> Any:
    """Returns the Python function of a kernel, or of an autotuner's kernel."""
    function = getattr(kernel, "fn", None)
    if not inspect.isfunction(function):
        function = getattr(function, "fn", None)
    if not inspect.isfunction(function):
        raise Unclear(
            f"{type(kernel).__name__} around another one chooses its parameters at each launch"
        )
    return function


def written(kernel: Any) -> frozenset[str]:
    """Returns the parameters that the kernel's source writes through. Raises Unclear where it does
    not show them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function_of(kernel))))
    except (OSError, TypeError, SyntaxError) as error:
        raise Unclear(f"the kernel's source is not there: {error}") from error
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    names = function_of(kernel).__globals__.items()
    languages = {
        name
        for name, value in names
        if inspect.ismodule(value) and value.__name__.split(".")[0] == "triton"
    }
    return _Writes(definition, languages).run()


class _Writes:
    """Finds the parameters that reach the pointer of a writing call. languages: names of Triton's
    modules. Mutable: `origins` grows to a fixed point."""

    def __init__(self, definition: ast.FunctionDef, languages: set[str]) -> None:
        arguments = definition.args
        parameters = {
            item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        self.origins = {name: {name} for name in parameters}
        self.body, self.languages = definition.body, languages

    def run(self) -> frozenset[str]:
        nodes = [node for statement in self.body for node in ast.walk(statement)]
        if any(map(_hides, nodes)):
            raise Unclear("the kernel's source does not show what it writes")
        before = -1
        while before != (now := sum(map(len, self.origins.values()))):
            before = now
            for target, value in self._bindings(nodes):
                for name in _names(target):
                    self.origins.setdefault(name, set()).update(self._pointers(value))
        texts: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Call):
                texts |= self._written_by(node)
        return frozenset(texts)

    @staticmethod
    def _bindings(nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield target, node.value
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                yield node.target, node.value
            elif isinstance(node, ast.For):
                yield node.target, node.iter

    def _pointers(self, value: ast.AST) -> set[str]:
        """Returns the parameters that an expression may point into; a loaded value is no pointer
        (see `_HIDING`)."""
        if isinstance(value, ast.Call) and self._of_language(value) in {"load", *_WRITES}:
            return set()
        if isinstance(value, ast.Name):
            return self.origins.get(value.id, set())
        return set().union(*(self._pointers(child) for child in ast.iter_child_nodes(value)), set())

    def _written_by(self, call: ast.Call) -> set[str]:
        """Returns what a call may write: through its first argument, or through any if the function
        is not Triton's."""
        inputs = [*call.args, *(keyword.value for keyword in call.keywords)]
        name = self._of_language(call)
        if name is not None and name not in _WRITES:
            return set()
        if name is not None and call.args:
            inputs = call.args[:1]
        elif isinstance(call.func, ast.Name) and call.func.id in _BUILTIN_CALLS:
            return set()
        elif isinstance(call.func, ast.Attribute):
            inputs.append(call.func.value)
            if call.func.attr in _READING_METHODS:
                return set()
        return set().union(*map(self._pointers, inputs), set())

    def _of_language(self, call: ast.Call) -> str | None:
        """Returns the name of a function of Triton's modules, None for any other."""
        root: ast.AST = call.func
        if not isinstance(root, ast.Attribute):
            return None
        while isinstance(root, ast.Attribute):
            root = root.value
        known = (
            isinstance(root, ast.Name) and root.id in self.languages and root.id not in self.origins
        )
        return call.func.attr if known else None  # type: ignore[attr-defined]


def _hides(node: ast.AST) -> bool:
    """Returns whether a node is a nested function or binding, or writes by other means than a known
    call."""
    if isinstance(node, ast.Attribute):
        return node.attr in _HIDING
    return isinstance(
        node, (ast.FunctionDef, ast.Lambda, ast.NamedExpr, ast.With, ast.comprehension)
    )


def _names(target: ast.AST) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


_operators: dict[Any, tuple[Any, tuple[Any, tuple[int, ...]]]] = {}
_definitions: list[Any] = []


def operator_for(kernel: Any, layout: LaunchLayout) -> tuple[Any, tuple[int, ...]]:
    """Returns the operator that launches the kernel, and the arguments that its results replace.
    Its arguments are three grid sizes per config, then the non-constant parameters. Raises Unclear
    where there is none."""
    key = (id(kernel), layout)
    if key not in _operators:
        _operators[key] = (
            kernel,
            _made(kernel, layout),
        )  # keeps the kernel alive, so that its id is not reused
    return _operators[key][1]


def _made(kernel: Any, layout: LaunchLayout) -> Any:
    writes = written(kernel)
    inputs = [(name, kind) for name, kind, _ in layout.parameters if kind != "constant"]
    sizes = 3 * len(layout.configs)
    replaced = tuple(
        sizes + k for k, (name, kind) in enumerate(inputs) if kind == "Tensor" and name in writes
    )
    if not replaced:
        raise Unclear("the kernel writes to none of its tensors")
    parameters = [
        f"{kind} {name}"
        for name, kind in (*((f"grid_{k}", "SymInt") for k in range(sizes)), *inputs)
    ]
    schema = f"({', '.join(parameters)}) -> ({', '.join(['Tensor'] * len(replaced))})"
    short = f"{function_of(kernel).__name__}_{_digest(kernel, layout)}"
    result: Any = torch.library.custom_op(
        f"tracer_triton::{short}",
        _launcher(kernel, layout, replaced),
        mutates_args=(),
        schema=schema,
    )
    result.register_fake(lambda *arguments: _several([_like(arguments[k]) for k in replaced]))
    _definitions.append(result)
    return getattr(torch.ops.tracer_triton, short).default, replaced


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _several(tensors: list[torch.Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _digest(kernel: Any, layout: LaunchLayout) -> str:
    """Hashes everything that launches share; valid in this process, whose functions the kernel may
    call."""
    function = function_of(kernel)
    source = getattr(kernel, "cache_key", None) or inspect.getsource(function)
    place = (function.__module__, function.__qualname__, id(kernel))
    return hashlib.sha256(repr((source, place, layout)).encode()).hexdigest()[:16]


def _launcher(kernel: Any, layout: LaunchLayout, replaced: tuple[int, ...]) -> Callable[..., Any]:
    options = {name: constant.value for name, constant in layout.options}
    there = {name for name, _, _ in layout.parameters}
    names = inspect.signature(function_of(kernel)).parameters
    leading = list(
        itertools.takewhile(there.__contains__, names)
    )  # config pruning reads these by position

    def launch(*arguments: Any) -> Any:
        items = list(arguments)
        for k in replaced:
            items[k] = _like(arguments[k]).copy_(arguments[k])
        sizes, values = items[: 3 * len(layout.configs)], iter(items[3 * len(layout.configs) :])
        grids = {config: tuple(sizes[3 * k : 3 * k + 3]) for k, config in enumerate(layout.configs)}
        inputs = {
            name: next(values) if constant is None else constant.value
            for name, kind, constant in layout.parameters
        }
        if all(sizes):
            first = [inputs.pop(name) for name in leading]
            kernel[_grid(grids)](*first, **inputs, **options)
        return _several([items[k] for k in replaced])

    return launch


def _grid(grids: dict[Any, tuple[int, ...]]) -> Any:
    """Returns the grid; for several configs, a function from a config's values to its grid."""
    if list(grids) == [()]:
        return grids[()]

    def of(value: Any) -> tuple[int, ...]:
        for config, grid in grids.items():
            if all(value[name] == constant.value for name, constant in config):
                return grid
        raise RuntimeError(f"a launch with values that no config has: {sorted(value)}")

    return of


def covers_its_storage(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is all of its memory, each element once: a kernel with its address
    reaches nothing else."""
    expected: Any = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected = expected * size
    nbytes = expected * tensor.element_size()
    return bool(tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == nbytes)
