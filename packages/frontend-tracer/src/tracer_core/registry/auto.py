"""The backend ``auto`` as it is listed, and its options.

`AUTO` itself compiles nothing: `tracer_core.dispatch.compile_graph` finds the plan in its options
and passes the graph to `tracer_core.autoselect.selection`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracer_core.contract.backend import Backend
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec, Training
from tracer_core.errors import BackendError
from tracer_core.registry.eager import DEVICES

if TYPE_CHECKING:
    import torch

NAME = "auto"


@dataclass(frozen=True)
class AutoOptions:
    """Options of ``backend="auto"``.

    Raises:
        ValueError: Seconds or the tolerance are negative.
    """

    #: Names of the backends to try, in this order; None: every plug-in that can run here, inductor
    #: first. (``backend=["inductor", ("onnxrt", {"intra_op_threads": 1})]`` says the same, and also
    #: takes `Backend` objects, callables and settings for each.)
    candidates: tuple[str, ...] | None = None
    #: Options of candidates by name, ``{"inductor": {"freeze": True}}``.
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Seconds per graph after which no further candidate is started; a candidate that is already
    #: compiling is not stopped.
    budget: float = 60.0
    #: Seconds that one comparison of a candidate with the best so far may take.
    timing: float = 1.0
    #: The largest relative error (2-norm of the difference over the 2-norm) that is accepted; None
    #: means 1e-3 for float32, 1e-7 for float64 and 3e-2 for 16-bit dtypes.
    tolerance: float | None = None
    #: Custom operators and functions of the program that are safe to run again on the same values,
    #: by name (``mine::op``, ``module.function``), namespace or module. A graph that calls others
    #: stays with eager.
    repeatable: tuple[str, ...] = ()
    #: Keep the choice on disk, keyed by graph, machine and versions, and reuse a stored one.
    remember: bool = True
    #: Decide within the first call, instead of in the background while eager serves.
    wait: bool = False

    def __post_init__(self) -> None:
        if self.budget < 0 or self.timing < 0 or (self.tolerance or 0) < 0:
            inputs = f"budget={self.budget}, timing={self.timing}, tolerance={self.tolerance}"
            raise ValueError(f"{inputs}: not negative")


def _not_the_way_in(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    detail = "it takes captured graphs: use it through compile() or plugin_api.compile_graph"
    raise BackendError(NAME, "compile", detail)


def backend_for(candidates: Sequence[Backend]) -> Backend:
    """Returns `AUTO` with the requirements that all candidates can meet."""
    modes = ["default", *(mode for candidate in candidates for mode in candidate.modes)]
    numbers = all(item.ir == "torch" or item.numbers == "inputs" for item in candidates)
    data_sizes = bool(candidates) and all(item.data_sizes == "symbols" for item in candidates)
    return Backend(
        name=NAME,
        compile=_not_the_way_in,
        description="tries the other backends on each graph, keeps the fastest with eager's results",
        ir="aten",
        training=Training.FORWARD_BACKWARD,
        modes=dict.fromkeys(modes, "each candidate's own"),
        shapes="symbolic",
        numbers="inputs" if numbers else "constants",
        data_sizes="symbols" if data_sizes else "break",
        devices=DEVICES,
        options=AutoOptions,
    )


AUTO = backend_for(())
