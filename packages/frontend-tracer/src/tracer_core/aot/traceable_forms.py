"""Forms of functions that functional values cannot pass through, made of operators that they can.

The C++ code of `one_hot` reads tensor values on the host: functional values show neither that they
are fakes nor that they are traced, so that it takes the way of real tensors. What it would raise, the
graph raises when it runs. A number that is stored becomes a tensor of the CPU there, a constant that
each call would copy to the device. The fused optimizers and GradScaler's operators have no functional
kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import fused_optimizers, grad_scaling
from tracer_core.ops.higher_order import adafactor
from tracer_core.torch_private.names import names

_NUMBERS = (bool, int, float, complex)
_ONE_HOT = names("_C._nn.one_hot ops.aten.one_hot.default")


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """torch.nn.functional.one_hot"""
    if num_classes == -1:  # the greatest value and one more: a size that depends on data
        return torch.nn.functional.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, device=tensor.device)
    # looked up, so that the graph raises for what is no class; eager mode then says so in its words
    known = torch.nn.functional.embedding(tensor, classes.unsqueeze(1))
    return torch.eq(known, classes).to(torch.int64)


#: cuDNN's number of each recurrent layer.
_CUDNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def _recurrent(name: str) -> Callable[..., Any]:
    """torch.lstm, gru, rnn_tanh or rnn_relu. On CUDA devices their C++ code looks for the weights' memory,
    which fakes do not have; without gradients and dropout cuDNN's operator is called as it would be."""
    function, is_lstm = getattr(torch, name), name == "lstm"

    def form(*args: Any) -> Any:
        if not _runs_in_cudnn(args):
            result = function(*args)
            return torch_private.corrected_states(args, result) if is_lstm else result
        x, states, weights, biases, layers, dropout, train, bidirectional, batch_first = args
        hx, cx = states if is_lstm else (states, None)
        hidden = hx.shape[2] if cx is None else cx.shape[2]
        projected = hx.shape[2] if hidden != hx.shape[2] else 0
        count = (4 if biases else 2) + bool(projected)
        out, hy, cy, *_ = torch.ops.aten._cudnn_rnn.default(
            x, list(weights), count, None, hx.contiguous(), None if cx is None else cx.contiguous(),
            _CUDNN_MODES[name], hidden, projected, layers, batch_first, dropout, train,
            bidirectional, [], None,
        )  # fmt: skip
        return (out, hy, cy) if is_lstm else (out, hy)

    return form


def _layer_by_layer(name: str) -> Callable[..., Any]:
    """torch.lstm, gru, rnn_tanh or rnn_relu. torch's Python kernels leave out the dropout between layers
    (``num_layers < i - 1`` in ``_rnn_helper``), so that each layer is a call of its own."""
    form, is_lstm = _recurrent(name), name == "lstm"

    def layer_by_layer(*args: Any) -> Any:
        if len(args) != 9 or not isinstance(args[3], bool):
            return form(*args)  # of packed sequences, which are not lowered
        x, states, weights, biases, layers, dropout, train, bidirectional, batch_first = args
        if layers == 1 or not (train and dropout):
            return form(*args)
        weights_each, states_each = len(weights) // layers, 2 if bidirectional else 1
        x = x.transpose(0, 1) if batch_first else x
        new_states = []
        for layer in range(layers):
            if layer:
                x = torch.dropout(x, dropout, True)
            own_weights = weights[weights_each * layer : weights_each * (layer + 1)]
            before = [
                state.narrow(0, states_each * layer, states_each)
                for state in (states if is_lstm else [states])
            ]
            x, *after = form(
                x, before if is_lstm else before[0], own_weights, biases, 1, 0.0, train,
                bidirectional, False,
            )  # fmt: skip
            new_states.append(after)
        x = x.transpose(0, 1) if batch_first else x
        return (x, *map(torch.cat, zip(*new_states, strict=True)))

    return layer_by_layer


def _runs_in_cudnn(args: Sequence[Any]) -> bool:
    """Whether a recurrent layer of padded sequences runs in cuDNN, with nothing to save for a backward
    and no random numbers."""
    if len(args) != 9 or not isinstance(args[2], (list, tuple)) or not isinstance(args[3], bool):
        return False
    x, states, weights, _, _, dropout, train, *_ = args
    states = [*states] if isinstance(states, (list, tuple)) else [states]
    tensors = [x, *states, *weights]
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return (
        x.device.type == "cuda"
        and all(tensor.dtype == x.dtype for tensor in tensors)
        and torch.backends.cudnn.is_acceptable(x)
        and not trains
        and not (train and dropout)
    )


def _setitem(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """torch.Tensor.__setitem__"""
    if type(value) in _NUMBERS:
        value = torch.scalar_tensor(value, dtype=tensor.dtype, device=tensor.device)
    tensor[index] = value


FORMS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(_ONE_HOT, _one_hot),
    **dict.fromkeys((operator.setitem, *names("Tensor.__setitem__")), _setitem),
    **{function: _recurrent(name) for name in _CUDNN_MODES for function in names(name)},
    **fused_optimizers.FORMS,
    **grad_scaling.FORMS,
    adafactor._fused_adafactor_: adafactor.traceable,
}

#: Forms that torch's Python kernels, which take symbolic sizes, are called through.
PYTHON_KERNEL_FORMS: Mapping[Any, Callable[..., Any]] = {
    function: _layer_by_layer(name) for name in _CUDNN_MODES for function in names(name)
}
