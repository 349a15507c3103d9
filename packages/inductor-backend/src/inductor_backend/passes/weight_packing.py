"""Uses our convolution and LSTM kernels in inference where parameters are no constants: packs the
weights in each call.

Convolutions run on channels-last data, with batch norm, activation and residual fused as epilogues.
Results differ by rounding alone. Measurements: docs/lab/cpu_kernels.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels.packed_weights import Geometry
from inductor_backend.passes.frozen_rewrites import (
    fuse_epilogues,
    geometry_of,
    pack_convolutions,
    scale_after_convolutions,
)
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from inductor_backend.passes.lstm import pack_layers_per_call, pays_per_call
from tracer_core.plugin_api import CompileSpec, Phase

#: Output pixels (of the whole batch) from which packing the weight pays; 1x1 windows pack faster,
#: and tiled kernels save more.
PIXELS, PIXELS_OF_ONE_TAP, PIXELS_OF_TILES = 256, 128, 128


def pays_anywhere(gm: torch.fx.GraphModule, spec: CompileSpec) -> bool:
    """Checks whether any node would be replaced."""
    return spec.phase is Phase.INFERENCE and any(
        _pays(node) or pays_per_call(node) for node in gm.graph.nodes
    )


def with_native_kernels(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy in which the nodes for which it pays use our kernels."""
    if not pays_anywhere(gm, spec):
        return gm
    editor = Editor(copy_of(gm), ())
    pack_layers_per_call(editor)
    chosen = [node for node in editor.graph.nodes if _pays(node)]
    scale_after_convolutions(editor, set(chosen))
    pack_convolutions(editor, set(chosen))
    fuse_epilogues(editor)
    return editor.gm


def _pays(node: torch.fx.Node) -> bool:
    if node.target is not aten.convolution.default:
        return False
    g = geometry_of(node)
    return g is not None and pays(g, node.meta["val"].shape)


def pays(g: Geometry, sizes: Sequence[Any]) -> bool:
    """Checks whether a convolution with a result of these sizes (N, C, H, W or N, C, L) pays for
    packing its weight."""
    pixels = math.prod(map(hint, (sizes[0], *sizes[2:])))
    least = PIXELS_OF_ONE_TAP if g.taps == 1 else PIXELS_OF_TILES if g.tiled else PIXELS
    return g.groups > 1 or pixels > least
