"""Calls a backend on a captured graph: validation, lowering, fallbacks."""
