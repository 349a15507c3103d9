"""Writes a compiled graph as a plain shared library with a C header, which needs neither Python nor
PyTorch.
"""
