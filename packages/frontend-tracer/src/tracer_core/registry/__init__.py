"""Backends by name: discovery through entry points, the eager ones, those that follow torch.compile's convention."""
