"""What a call keeps to undo its writes with.

In: pytest's monkeypatch. Out: a list that fills with (tensors looked after, copies made of them),
one pair a call.
"""

from __future__ import annotations

from tracer_core.execution.entry.snapshot import InputSnapshot


def copied_tensors(monkeypatch):
    """The list."""
    result, save = [], InputSnapshot.save

    def counted(self, tensors):
        kept = save(self, tensors)
        result.append((len(tensors), len(kept[2])))
        return kept

    monkeypatch.setattr(InputSnapshot, "save", counted)
    return result
