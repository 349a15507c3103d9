"""What the ranks run for test_in_graph.py: collectives that are nodes of the captured graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import tracer_core
from tests.distributed.training import CLOSE, EXACT, counts_of
from tracer_core.testing import CaptureCounter, compare

Program = Callable[[torch.Tensor], Any]
#: Functional collectives have these names since torch 2.13; before, those of the second column.
_NAMES = {
    "all_gather_single": "all_gather_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
gather, scatter = (
    getattr(functional, new, getattr(functional, old, None)) for new, old in _NAMES.items()
)


#: Those with a gradient, before torch 2.13 other functions.
_WITH_GRADIENT = ("all_gather_single_autograd", "all_gather_tensor_autograd"), (
    "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd",
)  # fmt: skip
gather_autograd, scatter_autograd = (
    getattr(functional, new, getattr(functional, old, None)) for new, old in _WITH_GRADIENT
)


# -- functional --


def summed(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def averaged(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x.t() * 2, "avg", dist.group.WORLD)


def gathered(x: torch.Tensor) -> torch.Tensor:
    return gather(x + 1, 0, dist.group.WORLD).relu()


def gathered_columns(x: torch.Tensor) -> torch.Tensor:
    return gather(x + 1, 1, dist.group.WORLD).sin()


def scattered(x: torch.Tensor) -> torch.Tensor:
    return scatter(x + 1, "sum", 0, dist.group.WORLD).relu()


def scattered_columns(x: torch.Tensor) -> torch.Tensor:
    return scatter(x + 1, "sum", 1, dist.group.WORLD).exp()


def exchanged(x: torch.Tensor) -> torch.Tensor:
    return functional.all_to_all_single(x.sin(), None, None, dist.group.WORLD) * 2


def exchanged_parts(x: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    sizes = [1 + 2 * rank, 1 + 2 * rank] if rank else [1, 3]
    return functional.all_to_all_single(x[: sum(sizes)].sin(), [1, 3] if rank == 0 else [3, 3],
                                        sizes, dist.group.WORLD) * 2  # fmt: skip


def broadcast(x: torch.Tensor) -> torch.Tensor:
    return functional.broadcast(x * 3, 1, dist.group.WORLD) + x


def two_in_a_row(x: torch.Tensor) -> torch.Tensor:
    """Both are issued before the first result is used."""
    left = functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
    right = functional.all_reduce(x.cos(), "max", dist.group.WORLD)
    return (x.exp() + 1).tanh() * right + left


def operand_written_later(x: torch.Tensor) -> torch.Tensor:
    """What a collective reads must not be overwritten before the wait."""
    y = x * 3
    total = gather(y, 0, dist.group.WORLD)
    for _ in range(4):
        y = (y + 1).softmax(1)
    return total.sum(0) + y


def broadcast_columns(x: torch.Tensor) -> torch.Tensor:
    """The result is contiguous although the operand is not."""
    return functional.broadcast((x * 3).t(), 1, dist.group.WORLD).sin()


def unread(x: torch.Tensor) -> torch.Tensor:
    functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
    return x.cos()


def by_name(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", "0") * x


# -- in place --


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def reduced_argument(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.sin()


def reduced_view(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    dist.all_reduce(y[1:3], group=dist.group.WORLD)
    return y * 2


def gathered_list(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.exp())
    return torch.cat(parts) * 2


def gathered_into(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.exp())
    return out.sum(0)


def scattered_into(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.exp())
    return out + 1


def broadcast_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + dist.get_rank()
    dist.broadcast(y, src=1)
    return y * 3


def exchanged_into(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.sin())
    return out * 2


def waited(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    z = x.cos()
    work.wait()
    return y * z


def of_group(x: torch.Tensor) -> torch.Tensor:
    y = x + dist.get_rank(GROUP[0]) * dist.get_world_size(GROUP[0])
    dist.all_reduce(y, group=GROUP[0])
    dist.broadcast(y, 0, group=GROUP[0])
    return y * 2


#: A group beside the default one; made by `called`.
GROUP: list[Any] = []
#: All are one graph.
PROGRAMS: dict[str, Program] = {
    value.__name__: value
    for value in (
        summed, averaged, gathered, gathered_columns, scattered, scattered_columns, exchanged,
        exchanged_parts, broadcast, broadcast_columns, two_in_a_row, operand_written_later, unread, by_name, reduced,
        reduced_argument, reduced_view, gathered_list, gathered_into, scattered_into,
        broadcast_in_place, exchanged_into, waited, of_group,
    )
}  # fmt: skip
#: Those that tell most of an engine that makes kernels of its own.
FEW = ("gathered_columns", "scattered_into", "two_in_a_row", "operand_written_later", "unread",
       "reduced_argument", "waited")  # fmt: skip
#: Rows of the argument, where they are not four.
ROWS = {"exchanged_parts": 6}


def _plain(value: Any) -> Any:
    """Waits: eager's functional collectives return a tensor that waits when it is used."""
    return value.wait() if isinstance(value, functional.AsyncCollectiveTensor) else value


def compare_calls(function: Program, fast: Any, times: int, tolerance: Any) -> None:
    """Compares calls with values that differ; the arguments, too."""
    rows = ROWS.get(function.__name__, 4)
    for number in range(times):
        results = []
        for value in (function, fast):
            x = torch.arange(rows * 2.0).reshape(rows, 2) / 8 + dist.get_rank() + number
            results.append([_plain(value(x)), x])
        compare(*results, tolerance)


def called(names: list[str], backend: str, dynamic: bool | None = None) -> dict[str, Any]:
    """Three calls of each program, with values that differ; the arguments are compared, too."""
    if not GROUP:
        GROUP.append(dist.new_group([0, 1]))
    seen = {}
    for name in names:
        function = PROGRAMS[name]
        with CaptureCounter() as counter:
            fast = tracer_core.compile(function, backend=backend, dynamic=dynamic)
            compare_calls(function, fast, 3, EXACT if backend.endswith("eager") else CLOSE)
        seen[name] = counts_of(counter)
    return seen


#: Those whose collectives have the same form in and out of a graph.
MIXED = ("reduced", "gathered_list", "gathered_into", "scattered_into", "broadcast_in_place",
         "exchanged_into", "waited")  # fmt: skip


def one_compiles() -> None:
    """The first rank has the collective in a graph, the other runs it eagerly."""
    for name in MIXED:
        function = PROGRAMS[name]
        fast = tracer_core.compile(function, backend="aten_eager")
        for number in range(2):
            x = torch.arange(8.0).reshape(4, 2) / 8 + dist.get_rank() + number
            want = function(x.clone())
            compare(want, (function if dist.get_rank() else fast)(x), EXACT)


# -- gradients --


class Copied(torch.autograd.Function):
    """Each rank computes with the whole of x: the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Reduced(torch.autograd.Function):
    """The sum of what each rank has computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


def through_sum(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * x, "sum", dist.group.WORLD).sin()


def through_gather(x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(dist.get_world_size() * x.numel()).view(-1, x.shape[1])
    return gather_autograd(x * x, 0, dist.group.WORLD).sin() * weights


def through_gathered_columns(x: torch.Tensor) -> torch.Tensor:
    return gather_autograd(x * x, 1, dist.group.WORLD).sin() * (dist.get_rank() + 1)


def through_scatter(x: torch.Tensor) -> torch.Tensor:
    return scatter_autograd(x * x, "sum", 1, dist.group.WORLD).sin()


def through_exchange(x: torch.Tensor) -> torch.Tensor:
    mixed = functional.all_to_all_single_autograd(x * x, None, None, dist.group.WORLD)
    return mixed.sin() * (dist.get_rank() + 1)


def through_functions(x: torch.Tensor) -> torch.Tensor:
    """As Megatron writes tensor parallelism."""
    inside = Copied.apply(x * 2) * (dist.get_rank() + 1)
    return Reduced.apply(inside.sin()).exp()


def past_a_reduced_copy(x: torch.Tensor) -> torch.Tensor:
    total = (x * 2).detach().clone()
    dist.all_reduce(total)
    return x * total


DIFFERENTIABLE: dict[str, Program] = {
    value.__name__: value
    for value in (
        through_sum, through_gather, through_gathered_columns, through_scatter, through_exchange,
        through_functions, past_a_reduced_copy,
    )
    if value is not through_sum or hasattr(functional, "all_reduce_backward")
}  # fmt: skip


def compare_gradients(function: Program, fast: Any, times: int, tolerance: Any) -> None:
    """Compares values and gradients of calls with values that differ."""
    for number in range(times):
        results = []
        for item in (function, fast):
            x = torch.arange(8.0).reshape(4, 2) / 8 + dist.get_rank() + number
            value = item(x.requires_grad_())
            value.backward(torch.cos(value.detach()))
            results.append([_plain(value), x.grad])
        compare(*results, tolerance)


def trained(names: list[str], backend: str) -> dict[str, Any]:
    """Values and gradients of three calls of each program."""
    seen = {}
    for name in names:
        function = DIFFERENTIABLE[name]
        with CaptureCounter() as counter:
            fast = tracer_core.compile(function, backend=backend)
            compare_gradients(function, fast, 3, EXACT if backend.endswith("eager") else CLOSE)
        seen[name] = counts_of(counter)
    return seen
