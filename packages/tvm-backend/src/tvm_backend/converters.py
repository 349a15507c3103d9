"""Our converters, for operators that TVM's importer lacks or converts to something else.

In: the importer and a node. Out: a Relax expression. What always holds: `tracer_core`'s probe of one node compares what
they compute with PyTorch before a graph uses them, so a form that a converter does not take may be refused by
raising NotImplementedError.
"""

from __future__ import annotations

from typing import Any

import torch

from tvm_backend.convolutions import convolution
