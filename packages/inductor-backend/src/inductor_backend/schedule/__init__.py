"""From loop nodes to kernels: dependencies, inlining, fusion, fused bodies, order, memory plan."""
