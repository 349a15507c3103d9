"""freeze=True: what depends on parameters alone is computed once, and weights are packed for their kernels."""
