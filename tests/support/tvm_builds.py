"""Which modules TVM builds while a test runs."""

from __future__ import annotations


def builds(monkeypatch):
    """Names of the modules that are compiled from now on."""
    from tvm_backend import build, freezing

    names = []
    real = build.build

    def spy(module, target, options, name):
        names.append(name)
        return real(module, target, options, name)

    monkeypatch.setattr(build, "build", spy)
    monkeypatch.setattr(freezing, "build", spy)
    return names
