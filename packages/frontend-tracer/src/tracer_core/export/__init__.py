"""Packages: one file with a compiled program, which runs without the program's source."""
