"""Checks compiled programs against eager mode, and narrows down what makes a difference."""
