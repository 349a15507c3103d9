"""Finds a small part of a captured graph that is still wrong, for `tracer_core.repro`.

In: a graph and the inputs of its call. Out: some of its calls as a graph of their own, whose inputs
are what eager mode computed there. Chunks of calls are left out as long as the compiled rest differs
from eager mode: halves first, single calls last.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import torch

from tracer_core import api
from tracer_core.options import CompileConfig
from tracer_core.verification.state import copied
from tracer_core.verification.verify import verify

#: A graph, its inputs, and which of these are parameters and buffers.
Part = tuple[torch.fx.GraphModule, list[Any], list[int]]


def smallest(part: Part, config: CompileConfig, seconds: float) -> Part:
    """Returns a small part that is wrong, after at most so many seconds; a graph that is right as it
    is."""
    end, (gm, inputs, own) = time.monotonic() + seconds, part
    if seconds <= 0 or not _is_wrong(part, config):
        return part
    recorder = torch.fx.Interpreter(gm, garbage_collect_values=False)
    recorder.run(*copied(inputs))
    parameters = {gm.graph.find_nodes(op="placeholder")[at] for at in own}
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    size = len(calls) // 2
    while size:
        for start in reversed(range(0, len(calls), size)):
            rest = calls[:start] + calls[start + size :]
            smaller = _part(gm, rest, recorder.env, parameters)
            if smaller is not None and time.monotonic() < end and _is_wrong(smaller, config):
                calls, part = rest, smaller
        size //= 2
    return part


def _is_wrong(part: Part, config: CompileConfig) -> bool:
    """Returns whether a compiled graph differs from eager mode, or fails."""
    backend, options, mode = config.backend, config.options, config.mode
    fast = api.compile(part[0], backend=backend, options=options, mode=mode, dynamic=config.dynamic)
    try:
        return not verify(fast, *part[1]).ok
    except Exception:  # whatever the compiler raises is the fault that is looked for
        return True


def _part(
    gm: torch.fx.GraphModule,
    calls: Sequence[torch.fx.Node],
    values: dict[torch.fx.Node, Any],
    parameters: Collection[torch.fx.Node],
) -> Part | None:
    """Returns some calls of a graph as a graph; None where there is none, or where an input would be
    something else than a tensor or number."""
    chosen, graph, env = set(calls), torch.fx.Graph(), {}
    needed = dict.fromkeys(i for node in calls for i in node.all_input_nodes if i not in chosen)
    if not calls or not all(isinstance(values[i], (torch.Tensor, int, float)) for i in needed):
        return None
    for item in needed:
        env[item] = graph.placeholder(item.name)
    for node in calls:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(env[node] for node in calls if not chosen.issuperset(node.users or [gm])))
    own = [at for at, item in enumerate(needed) if item in parameters]
    return torch.fx.GraphModule(gm, graph), [values[item] for item in needed], own
