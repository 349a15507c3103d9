"""FX graph edits that the rewrites before the ONNX translation share."""

from __future__ import annotations

from typing import Any

import torch


def call_after(node: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Inserts a call right behind `node` and computes its ``meta["val"]``."""
    with node.graph.inserting_after(node):
        result = node.graph.call_function(target, args, kwargs)
    result.meta = dict(node.meta)
    values: Any = torch.fx.map_arg((args, kwargs), lambda leaf: leaf.meta["val"])
    result.meta["val"] = target(*values[0], **values[1])
    return result


def take_place(result: torch.fx.Node, node: torch.fx.Node) -> None:
    """Makes the readers of `node`, except those that `result` is computed from, read `result`, and
    swaps the two names, because a graph's results are known by their names."""
    inside, front = {result}, [result]
    while front:
        for source in front.pop().all_input_nodes:
            if source is not node and source not in inside and node in source.all_input_nodes:
                inside.add(source)
                front.append(source)
    for reader in list(node.users):
        if reader not in inside:
            reader.replace_input_with(node, result)
    result.name, node.name = node.name, result.name
