"""Faults put into the tracer one by one; the tests must find each."""
