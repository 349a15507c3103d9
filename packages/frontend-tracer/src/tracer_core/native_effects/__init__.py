"""The native effects table: what native (C) callables and library functions read, change and call."""
