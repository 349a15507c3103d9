"""Chooses how a call runs: compiled or eager, now or later, and when captures end."""
