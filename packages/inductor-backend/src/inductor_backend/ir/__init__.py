"""The loop IR: buffers, loop bodies, nodes, views, the op vocabulary, index expressions and
symbolic sizes.
"""
