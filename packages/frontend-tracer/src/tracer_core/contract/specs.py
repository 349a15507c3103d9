"""Specs: what a backend is told about a graph, its inputs, its sizes and its outputs."""

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
    """What a graph input is in the captured program.

    SIZE: an int, whose symbol a SizeSpec names. NUMBER: a float, whose placeholder holds a
    SymFloat.
    """

    USER_INPUT = "user_input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    SIZE = "size"
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
    """Which graphs a backend wants when gradients are needed.

    INFERENCE_ONLY: none; the captured graph runs under eager autograd. FORWARD_BACKWARD: a forward
    and a backward graph, partitioned by the core's min-cut (the backend's options may have a field
    ``memory_budget``, 0 to 1). JOINT: the same, partitioned by the backend's own
    `Backend.partition`.
    """

    INFERENCE_ONLY = "inference_only"
    FORWARD_BACKWARD = "forward_backward"
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One placeholder of the graph, in order.

    name: the placeholder's name. role: what it is. source: where it comes from in the user's
    program, printable (``x``, ``self.conv1.weight``). stable_address: its storage stays at the same
    address from call to call while the guards hold (parameters and buffers).
    """

    name: str
    role: Role
    source: str
    stable_address: bool = False


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A symbolic size that occurs in the shapes of the graph.

    symbol: its name in the sympy expressions of ``meta["val"]`` (``s0``). input_index and dim:
    where a backend reads its value at run time, ``inputs[input_index].shape[dim]`` (dim None: the
    input is itself an int, of `Role.SIZE`). lower and upper: inclusive range. hint: its value in
    the captured call.
    """

    symbol: str
    input_index: int
    dim: int | None
    lower: int
    upper: int | None
    hint: int


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One value of the graph's output tuple, in order.

    alias_of_input / alias_of_output: the index of the input or earlier output whose storage it
    shares (torch-level graphs only: `lower` takes aliasing outputs out of ATen graphs and the core
    makes them again). mutated_input: for trailing ``copy_`` results, see `CompileSpec.mutations`.
    shape, stride: what the result must have, ints or SymInts. dtype and device likewise. ``None``
    in all four: the value is a Python int. saved: only the backward reads it; a runner may return
    such images (four dimensions, known sizes) channels-last instead, and names them in
    `Runner.channels_last`: the backward graph is compiled for them. gradient: it becomes the ``.grad``
    of a tensor, and the one of the call before was dropped before this call.
    """

    shape: tuple[Any, ...] | None
    stride: tuple[Any, ...] | None
    dtype: torch.dtype | None
    device: torch.device | None
    alias_of_input: int | None = None
    alias_of_output: int | None = None
    saved: bool = False
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """What a backend is told about a graph besides its nodes.

    inputs, outputs, sizes: see their types. mutations: indices of the inputs that the graph writes
    to; in ATen graphs each has one trailing ``aten.copy_(placeholder, value)`` node.
    `Runner.mutated_on_error` may say which of them a run that raises may have written to. phase:
    what part of the program the graph is. options: an instance of the backend's options dataclass.
    mode: one of the backend's modes. device: where most of the graph's inputs live. cache_key: hex
    digest over graph, shapes, dtypes, options, mode and versions: equal keys mean that compiling
    again would give the same result. name: a short name for dumps and messages (``graph_0``).
    constants: indices of the inputs (parameters and buffers) that keep their values from call to
    call. Where there are any, the backend fills in `Runner.bind_constants` and
    `Runner.constants_read`.
    """

    backend: str
    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    sizes: tuple[SizeSpec, ...]
    mutations: tuple[int, ...]
    phase: Phase
    options: Any
    mode: str
    device: torch.device
    cache_key: str
    constants: tuple[int, ...] = ()


class ValueClass(enum.Enum):
    """Which input values make an engine's result of an operator differ from PyTorch's; see
    `add_value_check`.
    """

    INDEX = "an index out of range, or a negative one that PyTorch refuses"
    NAN = "NaN in an argument"
    INFINITE = "NaN or an infinity in an argument"
