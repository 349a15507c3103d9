"""FX graph edits that the rewrites before the ONNX translation share."""

from __future__ import annotations

from typing import Any

import torch


def call_after(node: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Inserts a call right behind `node` and computes its ``meta["val"]``."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    values: Any = torch.fx.map_arg((args, kwargs), lambda one: one.meta["val"])
    made.meta["val"] = target(*values[0], **values[1])
    return made


def take_place(made: torch.fx.Node, node: torch.fx.Node) -> None:
    """Makes the readers of `node`, except those that `made` is computed from, read `made`, and
    swaps the two names, because a graph's results are known by their names."""
    inside, front = {made}, [made]
    while front:
        for source in front.pop().all_input_nodes:
            if source is not node and source not in inside and node in source.all_input_nodes:
                inside.add(source)
                front.append(source)
    for reader in list(node.users):
        if reader not in inside:
            reader.replace_input_with(node, made)
    made.name, node.name = node.name, made.name
