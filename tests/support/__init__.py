"""What tests and benchmarks share and users never import."""
