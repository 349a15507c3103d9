"""What native (C) callables and library functions read, change and call: the effect table."""
