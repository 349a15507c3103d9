"""Backends by name: entry-point discovery, the eager backends, and adapters to torch.compile's
convention.
"""
