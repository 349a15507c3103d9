"""Specs: what a backend gets to know about a graph, its inputs, its sizes and its outputs."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Key in the ``meta`` of a backward node that rebuilds the indices of a max pooling from the saved
#: int8 offsets in the pooling windows (row-major, two dimensions, no dilation). Its value says how
#: the windows lay: (kernel, stride, padding, width of the image). In a graph that is compiled in
#: parts, a placeholder has it where another part rebuilds the indices.
OFFSETS_IN_WINDOWS = "offsets_in_windows"

#: Key in the ``meta`` of the nodes that a decomposition made of one operator, which have the same value
#: there, ``"addcdiv/3"``: eager computes them in one kernel, which rounds the operator's result only.
DECOMPOSED = "decomposed"


class Role(enum.Enum):
    """What a graph input is in the captured program."""

    USER_INPUT = "user_input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    #: An int, whose symbol a SizeSpec names.
    SIZE = "size"
    #: A float, whose placeholder holds a SymFloat.
    NUMBER = "number"
    RNG_STATE = "rng_state"
    SAVED_ACTIVATION = "saved_activation"


class Phase(enum.Enum):
    """Which pass of the program a graph computes."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"
    JOINT = "joint"


class Training(enum.Enum):
    """Which graphs a backend wants when gradients are needed."""

    #: No graphs: the captured graph runs under eager autograd.
    INFERENCE_ONLY = "inference_only"
    #: A forward and a backward graph, partitioned by the core's min-cut (the backend's options may
    #: have a field ``memory_budget``, 0 to 1).
    FORWARD_BACKWARD = "forward_backward"
    #: The same, partitioned by the backend's own `Backend.partition`.
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One placeholder of the graph, in order."""

    #: The placeholder's name.
    name: str
    #: What it is in the captured program.
    role: Role
    #: The expression that reads it in the user's program (``x``, ``self.conv1.weight``).
    source: str
    #: Whether its storage stays at the same address while the guards hold, as that of parameters and
    #: buffers does.
    stable_address: bool = False


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A symbolic size that occurs in the shapes of the graph."""

    #: Its name in the sympy expressions of ``meta["val"]`` (``s0``).
    symbol: str
    #: Index of the input from which it is read at run time: ``inputs[input_index].shape[dim]``.
    input_index: int
    #: Dimension of that input. None: the input is itself the int, of `Role.SIZE`.
    dim: int | None
    #: Smallest value for which the graph is valid.
    lower: int
    #: Largest value for which the graph is valid. None: unbounded.
    upper: int | None
    #: Its value in the captured call.
    hint: int


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One value of the graph's output tuple, in order.

    Where `shape`, `stride`, `dtype` and `device` are None, the value is a Python int.
    """

    #: The shape of the result, ints or SymInts.
    shape: tuple[Any, ...] | None
    #: The strides of the result, ints or SymInts.
    stride: tuple[Any, ...] | None
    #: The dtype of the result.
    dtype: torch.dtype | None
    #: The device of the result.
    device: torch.device | None
    #: Index of the input whose storage it shares. Torch-level graphs only: `lower` removes aliasing
    #: outputs from ATen graphs, and the core rebuilds them from what the graph returns.
    alias_of_input: int | None = None
    #: Index of the earlier output whose storage it shares. Torch-level graphs only.
    alias_of_output: int | None = None
    #: Whether only the backward reads it. A runner may return such an image (four dimensions, static
    #: sizes) channels-last and list it in `Runner.channels_last`: the backward graph is then compiled
    #: for these strides.
    saved: bool = False
    #: Whether it becomes the ``.grad`` of a tensor whose gradient of the previous call was dropped
    #: before this one.
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """What a backend gets to know about a graph besides its nodes."""

    #: The backend's name.
    backend: str
    #: A short name for dumps and messages (``graph_0``).
    name: str
    #: One per placeholder, in order.
    inputs: tuple[InputSpec, ...]
    #: One per value of the output tuple, in order.
    outputs: tuple[OutputSpec, ...]
    #: One per symbol in the shapes of the graph.
    sizes: tuple[SizeSpec, ...]
    #: Indices of the inputs that the graph writes to. In ATen graphs each has one trailing
    #: ``aten.copy_(placeholder, value)`` node.
    mutations: tuple[int, ...]
    #: Which pass of the program the graph computes.
    phase: Phase
    #: An instance of the backend's options dataclass.
    options: Any
    #: One of the backend's modes.
    mode: str
    #: Where most of the graph's inputs live.
    device: torch.device
    #: Hex digest of graph, shapes, dtypes, options, mode and versions: with equal keys, compiling
    #: again gives the same result.
    cache_key: str
    #: Indices of the inputs (parameters and buffers) that keep their values from call to call. Where
    #: there are any, the runner has `Runner.bind_constants` and `Runner.constants_read`.
    constants: tuple[int, ...] = ()


class ValueClass(enum.Enum):
    """Input values for which an engine's result of an operator differs from PyTorch's.

    See `add_value_check`.
    """

    INDEX = "an index out of range, or a negative one that PyTorch refuses"
    NAN = "NaN in an argument"
    INFINITE = "NaN or an infinity in an argument"
