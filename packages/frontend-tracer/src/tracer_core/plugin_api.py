"""The contract between tracer_core and a backend: the one module that a backend imports.

Importing it costs what importing torch costs: names that need more are imported at their first use.
`__all__` lists the names by purpose:

- A backend registers `Backend` objects in a function marked with `hookimpl`.
- Its compile function takes a graph and a `CompileSpec`, and returns a `Runner`.
- `lower`, `compile_graph` and `get_backend` run a part of the core, or another backend.
- An engine with tensors of its own uses `contiguous_graph`, `promote`, `op_support_check` and
  `add_value_check`.
- Limits, settings, stages, logs, errors and the store are those of the core.

The core never imports an engine (triton, onnxruntime, tvm, ...) to list its backend: `compile`,
`supports`, `available`, `options` and the other callables of `Backend` may be
``"module:attribute"`` strings, which are resolved when they are first needed.

Every dataclass here is frozen. `API_VERSION` changes whenever a field changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracer_core.contract.backend import (
    API_VERSION,
    CAPTURING_MODES,
    DEFAULT_MODES,
    PROJECT,
    Backend,
    DataSizeSupport,
    IRLevel,
    Lazy,
    NumberSupport,
    ParameterSupport,
    ShapeSupport,
    hookimpl,
    resolve,
)
from tracer_core.contract.branch_prediction import commit, is_predicted
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
from tracer_core.debug.graph_script import listing as graph_listing
from tracer_core.debug.logs import enabled, logger, note
from tracer_core.debug.profiling import label as row_label
from tracer_core.debug.profiling import row as profile_row
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
from tracer_core.guards.generated_code import define
from tracer_core.limit_table import Limit, LimitTable
from tracer_core.ops import factories as factories  # defines what stored code calls
from tracer_core.ops.table import overloads_with, raises_by_value, reasons, spelled_with
from tracer_core.ops.traits import Trait, has_effect, is_pointwise, is_random, runs_once
from tracer_core.options import Environment, env
from tracer_core.storage.cache_location import CacheLocationError, demand_room, private_folder
from tracer_core.storage.processor import level as cpu_level
from tracer_core.storage.store import FORMAT as ENTRY_FORMAT
from tracer_core.storage.store import Folder, Store, packed, unpacked
from tracer_core.torch_private.distributed import communicates
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import PROFILING, profiler_state
from tracer_core.variable_table import Variable, count, flag, seconds, size

if TYPE_CHECKING:
    import torch

    from tracer_core.aot.linalg_checks import CHECKED as LINALG_CHECKED
    from tracer_core.aot.linalg_checks import checked as linalg_checked
    from tracer_core.aot.linalg_checks import deferred_checks as deferred_linalg_checks
    from tracer_core.aot.request import Lowered
    from tracer_core.aot.scan_steps import scalars_of as scan_scalars
    from tracer_core.aot.scan_steps import step_of as scan_step
    from tracer_core.dispatch.compile_graph import compile_torch_graph as compile_graph
    from tracer_core.engine_support.contiguous import ContiguousGraph, ResultForm, contiguous_graph
    from tracer_core.engine_support.op_support import OpSupportCheck
    from tracer_core.engine_support.op_support import OpSupportCheck as op_support_check
    from tracer_core.engine_support.type_promotion import promote
    from tracer_core.engine_support.value_checks import ValueCheck, add_value_check
    from tracer_core.engine_support.value_checks import checkable as checks_indices
    from tracer_core.ops.higher_order.control_flow import COND
    from tracer_core.ops.higher_order.control_flow import WHILE as WHILE_LOOP
    from tracer_core.ops.higher_order.flex_attention import BACKWARD as FLEX_ATTENTION_BACKWARD
    from tracer_core.ops.higher_order.flex_attention import FORWARD as FLEX_ATTENTION
    from tracer_core.ops.higher_order.flex_attention import WHOLE as FLEX_UNMASKED_BLOCK
    from tracer_core.ops.higher_order.flex_attention import Flex as FlexProgram
    from tracer_core.ops.higher_order.flex_attention import decomposed as flex_attention_decomposed
    from tracer_core.ops.higher_order.flex_attention import (
        decomposed_backward as flex_attention_backward_decomposed,
    )
    from tracer_core.ops.higher_order.flex_attention import flex_of as flex_program
    from tracer_core.ops.higher_order.scalar_program import LOAD as SCALAR_LOAD
    from tracer_core.ops.higher_order.scalar_program import SIZE as SCALAR_SIZE
    from tracer_core.ops.higher_order.scalar_program import Ref as ScalarRef
    from tracer_core.ops.higher_order.scalar_program import ScalarProgram
    from tracer_core.ops.higher_order.scalar_program import function_of as scalar_function
    from tracer_core.ops.higher_order.scan import ASSOCIATIVE as ASSOCIATIVE_SCAN
    from tracer_core.ops.higher_order.scan import SCAN
    from tracer_core.ops.higher_order.scan import by_tree as scan_by_tree
    from tracer_core.ops.higher_order.scan import in_sequence as scan_in_sequence

__all__ = [
    # the registration
    "API_VERSION", "CAPTURING_MODES", "DEFAULT_MODES", "PROJECT", "Backend", "DataSizeSupport",
    "IRLevel", "Lazy",
    "NumberSupport", "ParameterSupport", "ShapeSupport", "Training", "hookimpl", "resolve",
    # the call of a backend
    "CompileSpec", "InputSpec", "OutputSpec", "Phase", "Role", "RunFunction", "Runner",
    "SizeSpec", "commit", "is_predicted",
    # keys in the `meta` of nodes
    "DECOMPOSED", "OFFSETS_IN_WINDOWS",
    # errors
    "BackendError", "BackendNotFoundError", "CacheLocationError", "CompilerMissingError",
    "OptionError", "RequirementError", "TracerError", "VerifyError",
    # lowering, and other backends
    "Lowered", "communicates", "compile_graph", "get_backend", "lower", "operators",
    # engines with tensors of their own
    "ContiguousGraph", "OpSupportCheck", "ResultForm", "ValueCheck", "ValueClass",
    "add_value_check", "checks_indices", "contiguous_graph", "op_support_check", "promote",
    # traits of operators
    "Trait", "has_effect", "is_pointwise", "is_random", "overloads_with", "raises_by_value",
    "reasons", "runs_once", "spelled_with",
    # operators of tracer_core, and their programs
    "ASSOCIATIVE_SCAN", "COND", "FLEX_ATTENTION", "FLEX_ATTENTION_BACKWARD",
    "FLEX_UNMASKED_BLOCK", "LINALG_CHECKED", "SCALAR_LOAD", "SCALAR_SIZE", "SCAN", "WHILE_LOOP",
    "FlexProgram", "ScalarProgram", "ScalarRef", "deferred_linalg_checks",
    "flex_attention_backward_decomposed", "flex_attention_decomposed", "flex_program",
    "linalg_checked", "scalar_function", "scan_by_tree",
    "scan_in_sequence", "scan_scalars", "scan_step",
    # settings and limits
    "Environment", "Limit", "LimitTable", "Variable", "count", "env", "flag", "seconds", "size",
    # profiles, and the lines of generated functions in tracebacks
    "PROFILING", "define", "profile_row", "profiler_state", "row_label",
    # stages and logs
    "StageRecord", "debug_folder", "enabled", "graph_listing", "logger", "note", "stage",
    "wants_text",
    # the store, and compilers
    "ENTRY_FORMAT", "Command", "Folder", "Store", "compilers", "cpu_level", "demand_room",
    "packed", "private_folder", "unpacked",
]  # fmt: skip


def lower(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    backend: Backend | str,
    *,
    input_specs: Sequence[InputSpec] | None = None,
    options: Any = None,
    mode: str = "default",
    name: str = "graph_0",
    phase: Phase = Phase.INFERENCE,
) -> Lowered:
    """Lowers a torch-level graph to the IR that a backend takes, without the tracer.

    Args:
        gm: The torch-level graph. Placeholders may carry fakes in ``meta["val"]``.
        inputs: One real or fake tensor (or int) per placeholder; ``meta["val"]`` replaces it.
        backend: A `Backend`, or the name of an installed one.
        input_specs: One per placeholder; by default all have `Role.USER_INPUT`.
        options: An instance of the backend's options dataclass, for the spec.
        mode: The mode, for the spec.
        name: The name of the graph, for the spec.
        phase: What the graph computes, for the spec.

    Returns:
        The lowered graph and its `CompileSpec`, as attributes ``graph`` and ``spec``.

    Raises:
        LoweringUnsupported: The graph has no functional form; the text has the reason.
        BackendNotFoundError: No installed backend has that name.
    """
    from tracer_core.aot.lower import lower_for  # heavy: FakeTensor, make_fx
    from tracer_core.aot.request import Request  # heavy: FakeTensor

    chosen = get_backend(backend) if isinstance(backend, str) else backend
    return lower_for(gm, inputs, Request(chosen, options, mode, name, phase), input_specs)


def get_backend(name: str) -> Backend:
    """Returns an installed backend by its name, for a backend that uses another.

    `tracer_core.reset` resets that backend too from then on.

    Args:
        name: What users pass as ``backend=``.

    Returns:
        The backend that is registered under that name.

    Raises:
        BackendNotFoundError: No installed backend has that name; the error lists those that are.
    """
    from tracer_core.registry.discovery import get, mark_used  # heavy: entry points

    backend = get(name)
    mark_used(backend)
    return backend


#: Modules that import FakeTensor or define operators -> exported names (name=its name there), which
#: are imported at their first use.
_DEFERRED = {
    "ops.higher_order.control_flow": "COND WHILE_LOOP=WHILE",
    "ops.higher_order.flex_attention": "FLEX_ATTENTION=FORWARD FLEX_ATTENTION_BACKWARD=BACKWARD "
    "FLEX_UNMASKED_BLOCK=WHOLE FlexProgram=Flex "
    "flex_attention_backward_decomposed=decomposed_backward flex_attention_decomposed=decomposed "
    "flex_program=flex_of",
    "aot.linalg_checks": (
        "LINALG_CHECKED=CHECKED linalg_checked=checked deferred_linalg_checks=deferred_checks"
    ),
    "aot.request": "Lowered",
    "ops.higher_order.scalar_program": "SCALAR_LOAD=LOAD SCALAR_SIZE=SIZE ScalarProgram ScalarRef=Ref "
    "scalar_function=function_of",
    "aot.scan_steps": "scan_scalars=scalars_of scan_step=step_of",
    "ops.higher_order.scan": "ASSOCIATIVE_SCAN=ASSOCIATIVE SCAN scan_by_tree=by_tree "
    "scan_in_sequence=in_sequence",
    "dispatch.compile_graph": "compile_graph=compile_torch_graph",
    "engine_support.contiguous": "ContiguousGraph ResultForm contiguous_graph",
    "engine_support.op_support": "OpSupportCheck op_support_check=OpSupportCheck",
    "engine_support.type_promotion": "promote",
    "engine_support.value_checks": "ValueCheck add_value_check checks_indices=checkable",
}


def __getattr__(name: str) -> Any:
    for module, exports in _DEFERRED.items():
        for exported, _, attribute in (item.partition("=") for item in exports.split()):
            if exported == name:
                value = resolve(f"tracer_core.{module}:{attribute or name}")
                return globals().setdefault(name, value)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
