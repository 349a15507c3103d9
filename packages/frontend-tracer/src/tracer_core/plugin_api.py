"""The contract between tracer_core and a backend: the one module a backend imports.

In: nothing but torch and the standard library, so that importing it costs what importing torch
costs. Out: the types a backend fills in (`Backend`) and is handed (`CompileSpec`), the hook marker
(`hookimpl`), services (`lower`, `compile_graph`, `get_backend`; for backends over an engine
`contiguous_graph`, `promote`, `op_support_check` and `add_value_check`; for tables of operators
`operators`), the table in which a backend registers its limits
(`LimitTable`), and the core's errors, environment, stages, loggers and cache folders, re-exported so
that a backend needs no other import.

A backend's engine (triton, onnxruntime, tvm, ...) is never imported to *list* it: `compile`,
`supports`, `available`, `options` and the other callables may be given as ``"module:attribute"``
strings, which are resolved the first time they are needed.

What always holds: every dataclass here is frozen; `API_VERSION` changes whenever a field changes
its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracer_core.contract.backend import (
    API_VERSION,
    DEFAULT_MODES,
    PROJECT,
    Backend,
    hookimpl,
    resolve,
)
from tracer_core.contract.runner import RunFunction, Runner
from tracer_core.contract.specs import (
    DECOMPOSED,
    OFFSETS_IN_WINDOWS,
    CompileSpec,
    InputSpec,
    OutputSpec,
    Phase,
    Role,
    SizeSpec,
    Training,
    ValueClass,
)
from tracer_core.debug.logs import enabled, logger, note
from tracer_core.debug.stages import StageRecord, debug_folder, stage, wants_text
from tracer_core.engine_support.compilers import Command, compilers
from tracer_core.errors import (
    BackendError,
    BackendNotFoundError,
    CompilerMissingError,
    OptionError,
    RequirementError,
    TracerError,
    VerifyError,
)
from tracer_core.limit_table import Limit, LimitTable
from tracer_core.ops.table import overloads_with, raises_by_value, reasons, spelled_with
from tracer_core.ops.traits import Trait, has_effect, is_pointwise, is_random, runs_once
from tracer_core.options import Environment, env
from tracer_core.storage.cache_location import (
    CacheLocationError,
    demand_room,
    private_folder,
)
from tracer_core.storage.processor import level as cpu_level
from tracer_core.storage.store import FORMAT as ENTRY_FORMAT
from tracer_core.storage.store import Folder, Store, packed, unpacked
from tracer_core.torch_private.distributed import communicates
from tracer_core.torch_private.names import operators

if TYPE_CHECKING:
    import torch

__all__ = [
    "API_VERSION",
    "DECOMPOSED",
    "DEFAULT_MODES",
    "ENTRY_FORMAT",
    "OFFSETS_IN_WINDOWS",
    "PROJECT",
    "Backend",
    "BackendError",
    "BackendNotFoundError",
    "CacheLocationError",
    "Command",
    "CompileSpec",
    "CompilerMissingError",
    "RequirementError",
    "Environment",
    "Folder",
    "ValueClass",
    "InputSpec",
    "Limit",
    "LimitTable",
    "OptionError",
    "OutputSpec",
    "Phase",
    "Role",
    "RunFunction",
    "Runner",
    "SizeSpec",
    "StageRecord",
    "Store",
    "TracerError",
    "Training",
    "Trait",
    "VerifyError",
    "add_value_check",
    "checks_indices",
    "communicates",
    "compile_graph",
    "compilers",
    "contiguous_graph",
    "control_flow",
    "cpu_level",
    "debug_folder",
    "demand_room",
    "env",
    "flex_attention",
    "get_backend",
    "has_effect",
    "hookimpl",
    "enabled",
    "is_pointwise",
    "is_random",
    "linalg_checked",
    "logger",
    "lower",
    "op_support_check",
    "note",
    "operators",
    "overloads_with",
    "packed",
    "private_folder",
    "promote",
    "raises_by_value",
    "reasons",
    "resolve",
    "runs_once",
    "scan",
    "scan_steps",
    "spelled_with",
    "stage",
    "unpacked",
    "wants_text",
]


def lower(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Backend | str, **kwargs: Any
) -> Any:
    """Lowers a torch-level graph to the IR that `backend` asks for, without the tracer.

    backend: an instance or an installed name. See `tracer_core.aot.lower.lower` for the other
    arguments, result and errors.
    """
    from tracer_core.aot.lower import lower as implementation  # heavy: FakeTensor, make_fx

    return implementation(
        gm, inputs, get_backend(backend) if isinstance(backend, str) else backend, **kwargs
    )


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Backend | str, **kwargs: Any
) -> Runner:
    """Compiles a torch-level graph with `backend`, without the tracer: lowering, partitioning by
    `supports`, the backend's compile and the check of its first result.

    inputs: one real or fake tensor (or int) a placeholder. kwargs: ``options``, ``mode``, ``name``.
    See `tracer_core.dispatch.compile_graph.compile_torch_graph`. Raises BackendError (strict mode),
    BackendNotFoundError, OptionError.
    """
    from tracer_core.dispatch.compile_graph import compile_torch_graph  # heavy: FakeTensor, make_fx

    runner: Runner = compile_torch_graph(gm, inputs, backend, **kwargs)
    return runner


def get_backend(name: str) -> Backend:
    """The installed backend of that name, for a backend that uses another: `tracer_core.reset`
    reaches it from then on. Raises BackendNotFoundError with what is installed."""
    from tracer_core.registry.discovery import get, mark_used  # heavy: entry points

    backend = get(name)
    mark_used(backend)
    return backend


def contiguous_graph(graph: torch.fx.GraphModule) -> Any:
    """For engines whose results are contiguous and that never write to an input: the graph in that
    form, and how its results become what the spec promises. See
    `tracer_core.engine_support.contiguous`."""
    from tracer_core.engine_support.contiguous import (
        contiguous_graph as implementation,  # heavy: torch
    )

    return implementation(graph)


def add_value_check(
    graph: torch.fx.Graph,
    faults: Callable[[Any], ValueClass | None],
    eager: Callable[..., Any],
    total: Callable[[Any], Any] | None = None,
) -> Any:
    """For engines whose results are PyTorch's for all but a few values: adds one result to the
    graph, the value check, in place. faults: for each node the values for which the engine must not
    have it, or None. Gives an object with the result's `name`, `is_hit(value)`, and `eager`, which
    gives PyTorch's results for a call with such values; None where no node has a fault. See
    `tracer_core.engine_support.value_checks`."""
    from tracer_core.engine_support.value_checks import (
        add_value_check as implementation,  # heavy: torch
    )

    return implementation(graph, faults, eager, total)


def checks_indices(node: torch.fx.Node) -> bool:
    """Returns whether a value check covers the indices of an operator (`ValueClass.INDEX`), so that
    an engine need not."""
    from tracer_core.engine_support.value_checks import checkable  # heavy: torch

    return checkable(node)


def flex_attention() -> Any:
    """For backends with kernels for flex_attention: its two operators (`FORWARD`, `BACKWARD`), their
    argument `program` (`flex_of`, `ScalarProgram`), and what else they are made of. See
    `tracer_core.ops.higher_order.flex_attention`."""
    from tracer_core.ops.higher_order import flex_attention as implementation  # heavy: torch

    return implementation


def linalg_checked() -> Any:
    """Returns the operator ``tracer_core::linalg_checked`` (result, info, name, is_matrix): the result of
    a factorization, once ``aten::_linalg_check_errors`` has not raised."""
    from tracer_core.aot.linalg_checks import CHECKED  # heavy: torch

    return CHECKED


def control_flow() -> Any:
    """For backends with kernels for whole loops and branches (they keep `tracer_core::scan`): the
    operators `COND` and `WHILE`. See `tracer_core.ops.higher_order.control_flow`."""
    from tracer_core.ops.higher_order import control_flow as implementation  # heavy: torch

    return implementation


def scan() -> Any:
    """For backends with kernels for loops over slices: the operators `SCAN` and
    `ASSOCIATIVE`. See `tracer_core.ops.higher_order.scan`."""
    from tracer_core.ops.higher_order import scan as implementation  # heavy: torch

    return implementation


def scan_steps() -> Any:
    """For the same backends: the programs of these operators as graphs (`step_of`, `scalars_of`).
    See `tracer_core.aot.scan_steps`."""
    from tracer_core.aot import scan_steps as implementation  # heavy: FakeTensor

    return implementation


def promote(graph: torch.fx.Graph) -> None:
    """For engines whose operators want arguments of one dtype: adds the casts that ATen's type
    promotion makes, in place. See `tracer_core.engine_support.type_promotion`."""
    from tracer_core.engine_support.type_promotion import promote as implementation  # heavy: torch

    implementation(graph)


def op_support_check(
    build: Callable[[Any], Callable[[list[Any]], Sequence[Any]]], engine: str
) -> Any:
    """A ``(node) -> None | reason`` for `Backend.supports` that asks the engine itself, by running
    the one node on seeded data and comparing with PyTorch. See
    `tracer_core.engine_support.op_support.OpSupportCheck`."""
    from tracer_core.engine_support.op_support import OpSupportCheck  # heavy: torch

    return OpSupportCheck(build, engine)
