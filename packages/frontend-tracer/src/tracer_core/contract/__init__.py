"""The contract between the core and a backend, as types: what a backend says of itself, what it is
given, what it returns.
"""
