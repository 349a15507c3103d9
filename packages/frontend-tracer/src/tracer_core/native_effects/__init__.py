"""The native effects table (what C functions and functions of libraries read, change and call), which
functions are inlined, and polyfills. The rows are in `native_functions`.
"""
