"""Tests of what the benchmarks' figures rest on; no time is asserted."""
