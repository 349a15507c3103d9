"""The only folder of this package that uses private names of torch and onnxruntime.

Tried on torch 2.13.0 with onnxscript 0.7.2 and onnxruntime 1.31.1."""
