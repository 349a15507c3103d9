"""Checks of linear algebra (``aten::_linalg_check_errors``) as an operator with a result.

``torch.linalg.cholesky`` and its relatives call a kernel that says in `info` whether the matrix was fit,
and then an operator that raises and returns nothing. ``tracer_core::linalg_checked`` raises the same and
returns what the kernel computed, so that whatever reads it comes after the check.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.ops.definitions import declare, implement
from tracer_core.torch_private.names import operators

aten = operators("aten")

CHECKED = declare("linalg_checked(Tensor result, Tensor info, str name, bool is_matrix) -> Tensor")
#: The operator that it replaces.
CHECK = aten._linalg_check_errors.default


_deferred = threading.local()


@contextlib.contextmanager
def deferred_checks() -> Iterator[list[Callable[[], None]]]:
    """Collects this thread's checks in a list, in place of making them.

    Reading `info` waits for the device, which a capture cannot. Each check reads what the last replay
    left in its copy of `info`, and waits for that alone, not for what the replay does after it.
    """
    checks: list[Callable[[], None]] = []
    _deferred.checks = checks
    try:
        yield checks
    finally:
        del _deferred.checks


def checked(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    """Returns a copy of what a kernel of linear algebra computed, checked.

    Args:
        result: What the kernel computed.
        info: What it says of its matrices, 0 where they are fit: int32, a number a matrix.
        name: The function that the error names, such as ``"linalg.cholesky"``.
        is_matrix: Whether there is one matrix, so that the error gives no place in a batch.

    Raises:
        torch.linalg.LinAlgError: A matrix is unfit. Inside `deferred_checks`, the check raises it.
    """
    checks: list[Callable[[], None]] | None = getattr(_deferred, "checks", None)
    if checks is None:
        CHECK(info, name, is_matrix=is_matrix)
    else:
        check: Callable[..., None] = CHECK
        copied = info.clone()
        if info.is_cuda:
            event = torch.cuda.Event(external=True)
            event.record()
            check = functools.partial(_check_behind, event)
        checks.append(functools.partial(check, copied, name, is_matrix=is_matrix))
    return result.clone()


def _check_behind(event: torch.cuda.Event, info: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Checks `info` as soon as the event has happened, on a stream with nothing else."""
    with torch.cuda.stream(_reading_stream(info.device)):
        event.wait()
        CHECK(info, *args, **kwargs)


@functools.cache
def _reading_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _fake(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    return result.clone()


implement(CHECKED, checked, _fake)


def results_of(info: torch.fx.Node | None) -> list[torch.fx.Node]:
    """Returns the nodes of the other results of the kernel that computed `info`; none where something
    reads one of them already, which would not come after the check."""
    if info is None or not info.args or not isinstance(info.args[0], torch.fx.Node):
        return []
    kernel: Any = info.args[0]
    users = [user for user in kernel.users if user is not info and user.target is info.target]
    return [] if any(item.users for item in users) else users
