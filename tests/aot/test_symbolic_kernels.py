"""Operators whose C++ kernels take no symbolic sizes are lowered by torch's Python kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tracer_core.testing import compare

PROGRAMS = {
    "a causal mask": lambda x: torch.full((x.shape[0], x.shape[0]), -1e9).triu_(1) + x @ x.mT,
    "triu_": lambda x: (x * 2).triu_(1) + 1,
    "tril_": lambda x: (x * 2).tril_() + 1,
    "clamp_": lambda x: (x * 2).clamp_(0, 1) + 1,
    "clamp_ by tensors": lambda x: (x * 2).clamp_(x.amin(), x.amax() / 2) + 1,
    "clamp_min_": lambda x: (x * 2).clamp_min_(0.5) + 1,
    "index_fill_": lambda x: (x * 2).index_fill_(0, torch.tensor([0]), 1) + 1,
    "logit_": lambda x: x.sigmoid().logit_(0.1) + 1,
    "copysign_": lambda x: (x * 2).copysign_(-1) + 1,
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, x.sign()) + 1,
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, x * 2, x.sign()) + 1,
}


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_all_sizes(name, backend):
    program = PROGRAMS[name]
    compiled = tracer_core.compile(program, backend=backend, dynamic=True)
    for size in (5, 8, 6):
        x = torch.randn(size, 7, generator=torch.Generator().manual_seed(size))
        compare(program(x), compiled(x))
    records = tracer_core.last_compile(compiled)
    assert not [record.text for record in records if record.name == "fallback"]


@pytest.mark.parametrize("name", ["clamp_", "hinge_embedding_loss", "margin_ranking_loss", "tril_"])
def test_gradients(name):
    program = PROGRAMS[name]
    compiled = tracer_core.compile(program, backend="aten_eager", dynamic=True)
    for size in (5, 8):
        x = torch.randn(size, 7, generator=torch.Generator().manual_seed(size))
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        program(mine).sum().backward()
        compiled(theirs).sum().backward()
        compare(mine.grad, theirs.grad)
    records = tracer_core.last_compile(compiled)
    assert not [record.text for record in records if record.name == "fallback"]


def positive(x):
    return x @ x.mT + 3 * torch.eye(2)


LINEAR_ALGEBRA = {
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        torch.linalg.cholesky(positive(x)), x[:1].expand_as(x), upper=False
    ),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(positive(x))),
    "solve": lambda x: torch.linalg.solve(positive(x), x),
    "pinv": lambda x: torch.linalg.pinv(positive(x)) @ x,
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(3, 2, 2)),
    "cross": lambda x: torch.linalg.cross(F.pad(x, (0, 1)), F.pad(x, (1, 0))),
    "cdist": lambda x: torch.cdist(x, x[:1] + 1),
    "baddbmm": lambda x: torch.baddbmm(x[0], x, x),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_gradients_of_batches(name, caplog):
    program = LINEAR_ALGEBRA[name]
    compiled = tracer_core.compile(program, backend="aten_eager")
    for size in (3, 4, 6):
        x = torch.randn(size, 2, 2, generator=torch.Generator().manual_seed(size))
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        program(mine).sum().backward()
        compiled(theirs).sum().backward()
        compare(mine.grad, theirs.grad)
    records = tracer_core.last_compile(compiled)
    assert not [record.text for record in records if record.name == "fallback"]
    assert not [record for record in caplog.records if "run meta" in record.getMessage()]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda layer: layer.__name__)
@pytest.mark.parametrize(
    "settings",
    [{}, {"batch_first": True}, {"bidirectional": True, "bias": False}],
    ids=["plain", "batch first", "both ways"],
)
def test_dropout_between_layers_with_batches_that_change(layer, settings):
    """torch's Python kernels leave it out."""
    torch.manual_seed(0)
    model = layer(4, 6, num_layers=3, dropout=0.4, **settings)
    fast = tracer_core.compile(model, backend="aten_eager", dynamic=True)

    def outcome(model_, x):
        torch.manual_seed(3)
        y, state = model_(x)
        states = state if isinstance(state, tuple) else (state,)
        return [y, *states, torch.rand(2)]

    for batch in (2, 3, 5):
        x = torch.randn((batch, 2, 4) if settings.get("batch_first") else (2, batch, 4))
        with torch.no_grad():
            want, got = outcome(model, x), outcome(fast, x)
        torch.testing.assert_close(got, want)
        assert [value.stride() for value in got] == [value.stride() for value in want]
        leaf, parameters = x.requires_grad_(), list(model.parameters())
        gradients = (
            torch.autograd.grad(sum(value.sum() for value in outcome(run, x)), [leaf, *parameters])
            for run in (model, fast)
        )
        torch.testing.assert_close(*gradients)
