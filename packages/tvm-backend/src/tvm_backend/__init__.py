"""The backend ``tvm`` of tracer_core. Not built yet: see `tvm_backend.plugin`."""
