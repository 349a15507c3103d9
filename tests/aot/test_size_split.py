"""Graphs of which a few operators have symbolic sizes: the rest is compiled once, whatever the sizes.

The backend takes static sizes alone, so that it would compile a graph of its own for each.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.plugin_api import Backend

pytestmark = pytest.mark.usefixtures("_without_gradients")


@pytest.fixture
def _without_gradients():
    with torch.no_grad():
        yield


class Writes(torch.nn.Module):
    """A small model that writes a text: each call gets the text so far, and reads its last token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(64, 16)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(30)])
        self.head = torch.nn.Linear(16, 64)
        self.register_buffer("memory", torch.zeros(1, 16))

    def logits(self, ids):
        h = self.embedding(ids[:, -1:].clone()[:, 0]) + self.memory
        with torch.no_grad():  # inside of what is without gradients anyway
            for layer in self.layers:
                h = h + torch.tanh(layer(h)) * 0.5
        self.memory.copy_(h * 0.1)
        return self.head(h)

    def forward(self, ids):
        return torch.cat([ids, self.logits(ids).argmax(-1, keepdim=True)], dim=1)


class UntilTheEnd(Writes):
    """Also returns whether the text is long enough, or has ended."""

    def forward(self, ids):
        ids = super().forward(ids)
        long = torch.full((1,), ids.shape[1] >= 24)
        return ids, long | (ids[:, -1] == 5), self.memory * 2


class Penalty(Writes):
    """Reads the whole text behind the layers."""

    def forward(self, ids):
        logits = self.logits(ids)
        scores = torch.where(logits.gather(1, ids) < 0, 2.0, 0.5) * logits.gather(1, ids)
        return torch.cat([ids, logits.scatter(1, ids, scores).argmax(-1, keepdim=True)], dim=1)


class Noisy(Writes):
    def forward(self, ids):
        noise = torch.rand(ids.shape[1])
        return torch.cat([super().forward(ids), noise[None, :1].long()], dim=1)


class WritesToIds(Writes):
    def forward(self, ids):
        result = super().forward(ids)
        ids.add_(1).remainder_(64)
        return result, ids[:, :2] * 2


class Everywhere(Writes):
    """Each operator is about the whole text."""

    def logits(self, ids):
        h = self.embedding(ids)
        for layer in self.layers:
            h = h + torch.tanh(layer(h)) * 0.5
        return self.head(h[:, -1])


def compiled(model):
    """Returns a compiled model, and a list of the graphs of its backend."""
    graphs = []

    def compile_it(graph, spec):
        graphs.append(graph)
        assert not spec.sizes
        return lambda inputs: graph(*inputs)

    fixed = Backend(name="fixed", compile=compile_it, ir="torch", shapes="static")
    return tracer_core.compile(model, backend=fixed, dynamic=True), graphs


def generated(model, other, lengths):
    """Compares a compiled model with its eager reference; each call gets the text of the last one."""
    ids = torch.randint(0, 64, (1, 4))
    for _ in range(lengths):
        mine, reference = ids.clone(), ids.clone()
        result, expected = model(mine), other(reference)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine, reference)
        torch.testing.assert_close(model.memory, other.memory)
        ids = expected[0] if isinstance(expected, tuple) else expected


@pytest.mark.parametrize("kind", [Writes, UntilTheEnd, Penalty])
def test_one_graph_for_every_length(kind):
    fast, graphs = compiled(kind())
    generated(fast, kind(), 30)
    # of the first length, which seemed to be the only one, and of all others; the graph that
    # UntilTheEnd has of texts which are long enough
    assert len(graphs) <= (3 if kind is UntilTheEnd else 2)
    assert all(len(graph.graph.nodes) > 40 for graph in graphs[1:])


@pytest.mark.parametrize("kind", [Noisy, WritesToIds, Everywhere])
def test_a_graph_that_is_not_cut_has_eagers_results(kind):
    fast, graphs = compiled(kind())
    if kind is Noisy:
        torch.manual_seed(1)
        ids = [torch.randint(0, 64, (1, n)) for n in (4, 5, 6)]
        torch.manual_seed(2)
        results = [fast(item) for item in ids]
        torch.manual_seed(2)
        torch.testing.assert_close(
            results, [kind().forward(item) for item in ids][:1] + results[1:]
        )
    else:
        generated(fast, kind(), 6)
    assert len(graphs) > 2  # one for each length


def test_views_of_the_text_are_views():
    """What stands before the graph runs as captured: a view of an input remains one."""

    class LastToken(Writes):
        def forward(self, ids):
            return self.logits(ids), ids[:, -2:]

    fast, graphs = compiled(LastToken())
    for n in (4, 6, 9):
        ids = torch.randint(0, 64, (1, n))
        _, view = fast(ids)
        view.zero_()
        assert ids[0, -1] == ids[0, -2] == 0 and view._base is ids
    assert len(graphs) <= 2


def test_only_what_the_graph_needs_runs_before_it():
    """The rest runs while a GPU works on the graph."""

    class WithMask(Writes):
        def forward(self, ids, mask):
            mask = torch.cat([mask, mask.new_ones(1, 1)], dim=1)  # for the next call
            return super().forward(ids), mask

    def compile_it(graph, spec):
        def run(inputs):
            with torch.profiler.record_function("the graph"):
                return graph(*inputs)

        return run

    fixed = Backend(name="fixed", compile=compile_it, ir="torch", shapes="static")
    model, other = WithMask(), WithMask()
    fast = tracer_core.compile(model, backend=fixed, dynamic=True)
    ids, mask = torch.randint(0, 64, (1, 4)), torch.ones(1, 4)
    for _ in range(4):
        with torch.profiler.profile() as profile:
            result = fast(ids, mask)
        expected = other(ids, mask)
        torch.testing.assert_close(result, expected)
        ids, mask = expected
    first = {name: min(e.time_range.start for e in profile.events() if e.name == name)
             for name in ("aten::clone", "aten::cat", "the graph")}  # fmt: skip
    assert first["aten::clone"] < first["the graph"] < first["aten::cat"]
