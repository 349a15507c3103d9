"""Every operator of PyTorch's OpInfo database, compiled by inductor and compared with eager.

``python -m tests.opinfo --workers 16 --out sweep.jsonl`` runs all of it and goes on where an
earlier run stopped; ``python -m tests.opinfo.page sweep.jsonl`` writes docs/operators.md and its
JSON from that.
"""
