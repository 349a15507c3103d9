"""Tensor operators seen during a trace, written down as an FX graph."""
