"""Measured choices: the quickest way, the first where times are equal; stored, and measured once a
machine.
"""

from __future__ import annotations

import contextlib
import json

import pytest
import torch

pytest.importorskip("triton")

from inductor_backend.codegen.triton.block_sizes import Axis, Tile, candidates
from inductor_backend.runtime.cuda import measurement, measurement_store

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def times(monkeypatch, tmp_path):
    actual = {}
    monkeypatch.setattr(measurement, "times", lambda ways: dict(actual))
    monkeypatch.setattr(measurement_store, "_name", lambda key, device: key)
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return actual


def chosen(key="work"):
    return measurement.chosen(key, DEVICE, dict, "some work")


@pytest.mark.parametrize(
    ("measured", "expected"),
    [({"aten": 1.0, "ours": 0.5}, "ours"), ({"aten": 1.0, "ours": 0.98}, "aten"), ({}, "")],
)
def test_the_quickest(times, measured, expected):
    times.update(measured)
    assert chosen() == expected


def test_measured_once(times, tmp_path):
    times.update({"a": 2.0, "b": 1.0})
    assert chosen() == "b"
    times.update({"a": 0.1})
    assert chosen() == "b" and chosen("other") == "a"
    assert json.loads(measurement_store._CHOICES.read("work"))["what"] == "some work"


def test_a_damaged_file_is_measured_again(times, tmp_path):
    times.update({"a": 1.0})
    for text in (b"{", b"[]", b"{}"):
        measurement_store._CHOICES.write("work", text)
        assert chosen() == "a" and chosen() == "a"
    (tmp_path / "triton-choices" / "work").write_bytes(b"damaged")
    assert chosen() == "a" and chosen() == "a"


@pytest.mark.parametrize(
    "tile",
    [
        Tile((Axis("x", (0,), 100_000, 512),), 4, False),
        Tile((Axis("y", (0,), 4096, 32), Axis("x", (1,), 4096, 32)), 4, False),
        Tile((Axis("x", (0,), 4096, 1), Axis("r", (1,), 4096, 4096)), 16, False),
        Tile((Axis("x", (0,), 4096, 1), Axis("r", (1,), 50_000, 2048)), 8, True),
    ],
)
def test_candidates_of_a_tile_cover_the_same_loops(tile):
    actual = candidates(tile)
    assert actual[0] == tile and len(actual) == len(set(actual)) > 2
    for item in actual:
        assert [axis.loops for axis in item.axes] == [axis.loops for axis in tile.axes]
        assert all(axis.block & (axis.block - 1) == 0 for axis in item.axes)
        assert item.warps in (1, 2, 4, 8, 16) and item.looped == tile.looped
        if tile.reduced is not None and not tile.looped:
            assert item.reduced == tile.reduced  # a row stays whole
