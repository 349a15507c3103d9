"""Ranks that run one program agree on graphs and keys; ranks that do not still get eager's results,
without deadlock.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=3)


@pytest.mark.parametrize(("model", "graphs"), [("mlp", 3), ("convnet", 3), ("bert", 16)])
def test_cache_keys(pair, model, graphs):
    """A forward, and the parts of its backward (the whole backward is not compiled, because it
    never runs).
    """
    assert pair.run("agreement:cache_keys", name=model) == [graphs, graphs]


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_sizes_change_on_one_rank(pair, backend):
    """One rank's graph is for its one size, the other's second is for all sizes."""
    still, moving = pair.run(
        "agreement:own_sizes", backend=backend, sizes=[[4, 4, 4, 4], [4, 5, 6, 7]]
    )
    assert still == {"graphs": 1, "breaks": [], "recompiles": 0}
    assert moving == {"graphs": 2, "breaks": [], "recompiles": 1}


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_sizes_change_on_both_ranks_at_different_times(pair, backend):
    for seen in pair.run(
        "agreement:own_sizes", backend=backend, sizes=[[2, 3, 4, 5], [7, 7, 7, 1]]
    ):
        assert seen["breaks"] == [] and seen["recompiles"] >= 1


def test_one_rank_reaches_its_recompile_limit(pair):
    still, moving = pair.run(
        "agreement:own_sizes",
        backend="aten_eager",
        dynamic=False,
        sizes=[[4] * 11, list(range(4, 15))],
    )
    assert (still["graphs"], moving["graphs"]) == (1, 8)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_programs_that_differ_by_rank(pair, backend):
    first, second = pair.run("agreement:own_python", backend=backend)
    assert first == {"graphs": 1, "breaks": [], "recompiles": 0}
    assert second == {"graphs": 1, "breaks": ["requested"], "recompiles": 0}


def test_one_cache_folder(pair):
    pair.run("agreement:shared_cache", rounds=2)
