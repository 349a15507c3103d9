"""The store and the process under faults: `nox -s store_faults` runs all, tests/storage/test_store_faults.py
a sample."""
