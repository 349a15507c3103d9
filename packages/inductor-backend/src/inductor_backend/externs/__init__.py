"""Kernels that others wrote and we call: how each is called, and when it is the fastest."""
