"""``python -m tracer_core.demo``, and the plot of the repository's demo."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import demo as benchmark
from tracer_core import demo


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(demo, "CALLS", 1)
    monkeypatch.setattr(demo, "TURNS", 1)
    monkeypatch.setattr(demo, "MODELS", {"pointwise chain": demo.MODELS["pointwise chain"]})


def test_a_row_a_model(capsys):
    assert demo.main() == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "model" and row.startswith("pointwise chain")
    assert float(row.split()[-1]) < 1e-5


def test_a_wrong_result_is_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(demo.api, "compile", lambda model: lambda x: model(x) * 1.01)
    assert demo.main() == 1


def test_the_plot_has_a_bar_a_row_that_ran():
    steady = {"seconds": {"eager": [0.2, 0.2], "compiled": [0.1, 0.1]}}
    picture = benchmark.plot({"bert_12": steady, "resnet18_64": {"failed": "out of memory"}})
    texts = [item.text for item in ElementTree.fromstring(picture).iter() if item.text]
    assert "bert_12" in texts and "2.00" in texts and "resnet18_64" not in texts
