"""The native-object interpreter: bytecode of CPython 3.11 and 3.12 over real Python objects."""
