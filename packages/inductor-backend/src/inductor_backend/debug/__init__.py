"""Prints the IRs as text, and verifies them after each stage (TRACER_CHECK=1)."""
