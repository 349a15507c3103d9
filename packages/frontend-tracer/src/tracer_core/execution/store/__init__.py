"""Stores cache entries and verdicts for later processes."""
