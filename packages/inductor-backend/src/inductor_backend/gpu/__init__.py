"""What is different for graphs on CUDA devices: edits of the graph before it is lowered (masks, alignment, host_side), stages in
place of the CPU's (stages), and kernels chosen by measurement (products, candidates, choices)."""
