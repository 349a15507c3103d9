"""An example of a third-party backend for tracer_core; see `peephole_backend.plugin`."""
