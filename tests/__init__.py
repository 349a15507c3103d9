"""Tests of the whole repository; `python -m pytest tests -m "not gpu and not slow"` runs what CI
runs.
"""
