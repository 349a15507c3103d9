"""Makes ``import torchvision`` work beside a torch build whose C++ extension of torchvision cannot
load.

In: nothing. Out: `define()`, to be called before torchvision (or timm, which imports it) is
imported. It declares the two operators that torchvision's own import asks for, without an
implementation: no model of ours calls them, and calling one raises. Test support only; nothing
under packages/ may import this.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

#: Keeps the declarations alive: an operator is withdrawn when its Library is collected.
_library: torch.library.Library | None = None


def define() -> None:
    """Declares the operators unless they exist or torchvision's own extension can declare them."""
    global _library
    if _library is not None or _extension_loads():
        return
    _library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _library.define(schema)


def _extension_loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for path in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(path))
        except OSError:  # linked against another build of torch: the case this module is for
            continue
        return True
    return False
