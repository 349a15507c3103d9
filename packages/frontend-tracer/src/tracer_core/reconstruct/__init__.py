"""Reconstructs results and replays side effects after a graph has run: one rule for each type."""
