"""The backend ``onnxrt`` of tracer_core: runs its graphs in ONNX Runtime."""
