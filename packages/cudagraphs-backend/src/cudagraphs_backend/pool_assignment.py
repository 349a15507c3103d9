"""Pool assignment: allocates a graph's results apart from the scratch memory that every CUDA graph
of a device may overwrite.

`with_pools` inserts calls into a lowered graph before and after the operators that allocate memory of
results. Outside a capture these calls do nothing; inside, results go to the CUDA graph's own pool
and everything else to the shared scratch pool."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from cudagraphs_backend.torch_private import storage_key


class Router(Protocol):
    """Switches the pool that the current thread allocates from."""

    def to_results(self) -> None: ...

    def to_scratch(self) -> None: ...


class _Current(threading.local):
    router: Router | None = None


_current = _Current()


@contextlib.contextmanager
def routed(router: Router) -> Iterator[None]:
    """Sends this thread's `to_results` and `to_scratch` to `router`, and starts in scratch."""
    router.to_scratch()
    _current.router = router
    try:
        yield
    finally:
        _current.router = None
        router.to_results()


def to_results() -> None:
    """Allocates in the pool of results from here on."""
    if _current.router is not None:
        _current.router.to_results()


def to_scratch() -> None:
    """Allocates in the shared scratch pool from here on."""
    if _current.router is not None:
        _current.router.to_scratch()


def to(of_result: bool) -> None:
    """Allocates in the pool of results, or in the shared scratch pool, from here on."""
    (to_results if of_result else to_scratch)()


#: Runs a graph, and calls its second argument before it allocates memory, with whether a result
#: will live there.
PoolRunner = Callable[[list[Any], Callable[[bool], None]], Sequence[Any]]


def with_pools(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns `gm` with calls of `to_results` and `to_scratch` inserted."""
    owners = _owners(gm.graph)
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, Any] = {}
    inside = False
    for node in gm.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.map_arg(node.args[0], result.__getitem__))
            break
        if node.op == "call_function" and (node in owners) != inside and not _is_number(node):
            inside = not inside
            graph.call_function(to_results if inside else to_scratch, ())
        result[node] = graph.node_copy(node, result.__getitem__)
    return torch.fx.GraphModule(gm, graph, class_name="Placed")


def _owners(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Returns the operators that allocate the memory of the graph's results."""
    first: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        for value in _tensors(node.meta.get("val")):
            first.setdefault(storage_key(value.untyped_storage()), node)
    (output,) = graph.find_nodes(op="output")
    items = set()
    for node in output.all_input_nodes:
        for value in _tensors(node.meta.get("val")):
            items |= {node, first[storage_key(value.untyped_storage())]}
    sources = {node.args[0] for node in items if getattr(node.target, "__name__", "") == "getitem"}
    return items | sources


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_number(node: torch.fx.Node) -> bool:
    return not _tensors(node.meta.get("val"))
