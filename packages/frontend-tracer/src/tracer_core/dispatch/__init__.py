"""Calls a backend on a captured graph: validation, lowering where it asks for it, fallbacks."""
