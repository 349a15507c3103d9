"""The effect table: what native (C) callables and library functions read, change and call."""
