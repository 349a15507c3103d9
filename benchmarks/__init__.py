"""Speed and accuracy, measured: eager, torch.compile and tracer_core side by side.

``python -m benchmarks`` lists what can be measured, ``python -m benchmarks NAME --help`` says how.
Only here may torch.compile be used: to be measured. Nothing here asserts a time.
"""
