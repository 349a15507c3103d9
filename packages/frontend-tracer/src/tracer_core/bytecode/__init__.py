"""CPython bytecode: code objects, frames, argument binding, the interpreter loop, tracebacks."""
