"""Loop IR to program text."""
