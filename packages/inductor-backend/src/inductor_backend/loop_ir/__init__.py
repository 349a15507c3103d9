"""The loop IR: buffers, loop bodies, nodes, views; its verifier and printer."""
