"""Readable text of the IRs, and their rules, which TRACER_CHECK=1 checks after each stage."""
