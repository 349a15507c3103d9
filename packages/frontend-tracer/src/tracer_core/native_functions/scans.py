"""torch's scan, associative_scan and map: loops over the slices of tensors."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.higher_order_calls import AssociativeScanCall, ScanCall, may_use_rng
from tracer_core.limits import MAX_UNROLLED_MAP
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import special
from tracer_core.native_functions.higher_order import region_of, traced
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree
from tracer_core.torch_private.releases import is_before
from tracer_core.trace.tracer import Tracer


@special(*names("_higher_order_ops.associative_scan"))
def associative_scan(
    tracer: Tracer,
    combine_fn: Any,
    xs: Any,
    dim: Any,
    reverse: Any = False,
    combine_mode: Any = "pointwise",
) -> Any:
    """Interprets the polyfill of a scan; breaks the graph for arguments that torch may reject."""
    leaves = pytree.tree_leaves(xs)
    if not (
        type(dim) is int
        and type(reverse) is bool
        and combine_mode in ("pointwise", "generic")
        and leaves
        and all(
            isinstance(leaf, torch.Tensor) and -leaf.ndim <= dim < leaf.ndim and leaf.shape[dim]
            for leaf in leaves
        )
    ):
        tracer.break_graph("higher_order", "associative_scan() of arguments that torch may refuse")
    scanned = [combine_fn, xs, dim % leaves[0].ndim, reverse]
    return tracer.calls.prepare(polyfills.associative_scan, scanned, {})


@special(polyfills.associative_rows, atomic=True)
def associative_rows(tracer: Tracer, combine_fn: Any, leaves: Any, structure: Any) -> Any:
    """Puts an associative scan into the graph as one node, whose function is traced once."""
    recorder = tracer.recorder
    fakes = [recorder.as_fake(leaf) for leaf in leaves]
    lengths = [fake.shape[0] for fake in fakes]
    if not all(length == lengths[0] for length in lengths):
        tracer.break_graph("higher_order", "an associative scan over different numbers of slices")
    if lengths[0] == 1:
        return leaves
    region = region_of(tracer, "an associative scan")
    with recorder.fakes.mode:
        inside = [_slice(fake) for fake in (*fakes, *fakes)]
    for value in inside:
        region.operand(value)
    count = len(fakes)
    inputs = [pytree.tree_unflatten(value, structure) for value in (inside[:count], inside[count:])]
    graph, outer, flat, result = traced(tracer, region, combine_fn, inputs, {})
    if result != structure or not all(map(_alike, inside, flat)):
        tracer.break_graph("higher_order", "an associative scan whose function returns others")
    if any(node.meta.get("writes") for node in graph.graph.nodes) or may_use_rng(graph):
        tracer.break_graph("higher_order", "an associative scan whose function has effects")
    (output,) = graph.graph.find_nodes(op="output")
    output.args = ((*output.args[0], *output.args[0]),)
    graph.recompile()
    target = AssociativeScanCall(graph, len(outer), count)
    return list(recorder.call(target, (*outer, *leaves), {}))


def _slice(fake: torch.Tensor) -> torch.Tensor:
    return fake[0].detach().clone().requires_grad_(fake.requires_grad)


@special(*names("_higher_order_ops.map"))
def map_rows(tracer: Tracer, f: Any, xs: Any, *args: Any) -> Any:
    """Interprets the polyfill of a map, which is a loop over many slices."""
    leaves = pytree.tree_leaves(xs)
    tensors = all(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves)
    if not tensors or not leaves:
        tracer.break_graph("higher_order", "map() over what are no slices of tensors")
    sizes = [tracer.recorder.as_fake(leaf).shape[0] for leaf in leaves]  # symbols have no hash
    few = all(type(n) is int and 0 < n <= MAX_UNROLLED_MAP and n == sizes[0] for n in sizes)
    if type(sizes[0]) is int and sizes[0] > MAX_UNROLLED_MAP:
        crossed("MAX_UNROLLED_MAP", reached=sizes[0])
    polyfill = polyfills.map_rows if few else polyfills.map_many_rows
    return tracer.calls.prepare(polyfill, [f, xs, *args], {})


#: Before torch 2.13 a scan gives other layouts and gradients: it breaks the graph.
_SCANS = () if is_before("2.13") else names("_higher_order_ops.scan")


@special(*_SCANS)
def scan(
    tracer: Tracer, combine_fn: Any, init: Any, xs: Any, *, dim: Any = 0, reverse: Any = False
) -> Any:
    """Interprets the polyfill of a scan; breaks the graph for arguments that torch may reject."""
    leaves, carry = pytree.tree_leaves(xs), pytree.tree_leaves(init)
    if not (
        type(dim) is int
        and type(reverse) is bool
        and leaves
        and carry
        and all(isinstance(leaf, torch.Tensor) for leaf in (*leaves, *carry))
        and all(0 <= dim < leaf.ndim for leaf in leaves)
    ):
        tracer.break_graph("higher_order", "scan() of arguments that torch may refuse")
    return tracer.calls.prepare(polyfills.scan, [combine_fn, init, xs, dim, reverse], {})


@special(polyfills.scan_rows, atomic=True)
def scan_rows(tracer: Tracer, step: Any, init: Any, xs: Any) -> Any:
    """Puts a loop over slices into the graph as one node, whose body is traced once."""
    recorder = tracer.recorder
    carry, structure = pytree.tree_flatten(init)
    leaves, shape = pytree.tree_flatten(xs)
    fakes = [recorder.as_fake(leaf) for leaf in (*carry, *leaves)]
    lengths = [fake.shape[0] for fake in fakes[len(carry) :]]
    if not all(length == lengths[0] for length in lengths) or lengths[0] == 0:
        tracer.break_graph("higher_order", "a scan over no slices, or over different numbers")
    region = region_of(tracer, "a scan")
    with recorder.fakes.mode:
        inside = [fake.detach().clone().requires_grad_(fake.requires_grad) if k < len(carry)
                  else _slice(fake)
                  for k, fake in enumerate(fakes)]  # fmt: skip
    for value in inside:
        region.operand(value)
    inputs = [
        pytree.tree_unflatten(inside[: len(carry)], structure),
        pytree.tree_unflatten(inside[len(carry) :], shape),
    ]
    graph, outer, flat, result = traced(tracer, region, step, inputs, {})
    full = pytree.tree_unflatten(flat, result)
    if not (isinstance(full, tuple) and len(full) == 2):
        tracer.break_graph("higher_order", "a scan whose function returns no pair")
    after, parts = pytree.tree_flatten(full[0])
    if parts != structure or not all(map(_alike, inside, after)):
        tracer.break_graph("higher_order", "a scan that carries something else than it was given")
    if not all(isinstance(leaf, torch.Tensor) for leaf in flat):
        tracer.break_graph("higher_order", "a scan whose function returns what is no tensor")
    if any(node.meta.get("writes") for node in graph.graph.nodes):
        tracer.break_graph("higher_order", "a scan whose function writes to a tensor")
    target = ScanCall(graph, len(outer), len(carry))
    results = recorder.call(target, (*outer, *carry, *leaves), {})
    return pytree.tree_unflatten(list(results), result)


def _alike(before: Any, after: Any) -> bool:
    return (
        isinstance(after, torch.Tensor)
        and before.shape == after.shape
        and before.dtype is after.dtype
        and before.device == after.device
    )
