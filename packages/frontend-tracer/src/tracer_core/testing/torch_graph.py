"""A torch-level graph of a straight-line function, for tests of lowering and of backends.

In: a function or module and its inputs. Out: a `CapturedGraph` such as the tracer makes: parameters
and buffers are inputs, every node has ``meta["val"]``. It is not the tracer: Python control flow is
followed as it runs, nothing is guarded, and only what torch functions do is seen.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.aot.symbolic_sizes import SYM_TYPES, SizeNodes
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.specs import InputSpec, Role
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.torch_private.modules import TENSOR_MODULE


class _Recorder(TorchFunctionMode):
    """Records each torch function that gives or changes a tensor (mutable)."""

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.fake_mode = fake_mode
        self.inputs: list[tuple[Any, InputSpec]] = []
        self._last: torch.fx.Node | None = None
        self._nodes: dict[int, torch.fx.Node] = {}
        self._fakes: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._sizes: SizeNodes | None = None

    def add(self, real: Any, fake: Any, spec: InputSpec) -> None:
        with self.graph.inserting_after(self._last or self.graph._root):
            self._last = self.graph.placeholder(spec.name)
        self._last.meta["val"] = fake
        self.inputs.append((real, spec))
        self._fakes[id(real)] = fake
        self._bind(fake, self._last)
        self._alive.append(real)

    def _bind(self, value: Any, node: torch.fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def fake(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or torch_private.is_fake(value):
            return value
        if id(value) not in self._fakes:
            name = f"tensor_{len(self.inputs)}"
            role = Role.PARAMETER if isinstance(value, torch.nn.Parameter) else Role.BUFFER
            fake = torch_private.to_fake(self.fake_mode, value)
            self.add(value, fake, InputSpec(name, role, name, True))
        return self._fakes[id(value)]

    def node(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._nodes[id(value)]
        if isinstance(value, SYM_TYPES):
            if self._sizes is None:
                self._sizes = SizeNodes(self.graph, self.graph.find_nodes(op="placeholder"))
            return self._sizes.node(value)
        return value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_aggregate(args, self.fake), map_aggregate(kwargs or {}, self.fake)
        symbolic = self.fake_mode.shape_env is not None
        kernels = torch_private.python_dispatcher() if symbolic else contextlib.nullcontext()
        with self.fake_mode, kernels:
            result = func(*args, **kwargs)
        flat = result if isinstance(result, (tuple, list)) else (result,)
        makes_tensors = any(isinstance(item, torch.Tensor) for item in flat)
        if not makes_tensors and func is not torch.Tensor.__setitem__:
            return result
        nodes = map_aggregate(args, self.node), map_aggregate(kwargs, self.node)
        if _is_wrapped(func):
            node = self.graph.call_method(func.__name__, *nodes)
        else:
            node = self.graph.call_function(func, *nodes)
        node.meta["val"], node.meta["user_frame"] = result, _user_frame()
        if result is not flat:
            self._bind(result, node)
            return result
        for index, item in enumerate(flat):
            if isinstance(item, torch.Tensor):
                got = self.graph.call_function(operator.getitem, (node, index))
                got.meta.update(node.meta, val=item)
                self._bind(item, got)
        return result


def _is_wrapped(func: Any) -> bool:
    """Returns whether a function is a method of Tensor that generated code cannot name.

    ``x ** 2`` calls a wrapped ``pow``.
    """
    module = getattr(func, "__module__", None)
    return module == TENSOR_MODULE and not hasattr(sys.modules[module], func.__name__)


def _user_frame() -> str:
    frame = sys._getframe(2)
    while frame.f_back and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {code.co_name}"


def torch_graph(
    fn: Callable[..., Any], inputs: Sequence[Any], *, dynamic: bool = False, name: str = "graph_0"
) -> CapturedGraph:
    """Returns the torch-level graph of ``fn(*inputs)``, which returns a tensor or a flat tuple.

    Args:
        fn: A function or module.
        inputs: Its arguments.
        dynamic: Whether every size of the inputs that is not 0 or 1 is symbolic; sizes of module
            parameters stay static.
        name: The name of the graph.
    """
    mode = Fakes(symbolic=dynamic).mode  # lays results out as the kernels do
    recorder = _Recorder(mode)
    fakes = []
    for index, real in enumerate(inputs):
        if isinstance(real, torch.Tensor):
            fake = mode.from_tensor(real) if dynamic else torch_private.to_fake(mode, real)
            recorder.add(real, fake, InputSpec(f"arg_{index}", Role.USER_INPUT, f"arg_{index}"))
            fakes.append(fake)
        else:
            fakes.append(real)
    grad = torch.is_grad_enabled()
    with torch.no_grad(), recorder:
        result = fn(*fakes)
    returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    recorder.graph.output(tuple(recorder.node(recorder.fake(item)) for item in returned))
    gm = torch.fx.GraphModule(torch.nn.Module(), recorder.graph, class_name=name)
    reals = tuple(real for real, _ in recorder.inputs)
    needs_grad = grad and any(getattr(real, "requires_grad", False) for real in reals)
    return CapturedGraph(gm, tuple(spec for _, spec in recorder.inputs), reals, needs_grad, name)
