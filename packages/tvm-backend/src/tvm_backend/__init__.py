"""The backend ``tvm`` of tracer_core: runs its graphs compiled by TVM. See `tvm_backend.plugin`."""
