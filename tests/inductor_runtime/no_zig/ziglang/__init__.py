"""Stands before the wheel ziglang: there is no compiler beside it."""
