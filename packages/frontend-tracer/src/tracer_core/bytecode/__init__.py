"""Code objects and frames of CPython: instructions, layout, arguments, tracebacks."""
