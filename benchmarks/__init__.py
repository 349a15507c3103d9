"""Speed and accuracy, measured: eager, torch.compile and ours side by side.

Each module runs alone (``python -m benchmarks.steady --models resnet18_64``); `benchmarks.run` runs
them all. Only here may torch.compile be used: to be measured. Nothing here asserts a time.
"""
