"""What tests of tracer_core and of backends use: differential checks, counters, conformance, graphs.

Importing this package imports no test framework.
"""

from __future__ import annotations

from tracer_core.testing.torch_graph import torch_graph

__all__ = ["torch_graph"]
