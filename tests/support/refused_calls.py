"""Calls that eager refuses: for each check in a kernel of ATen that a lowering or a decomposition
replaces, a good call and a bad one with other values or numbers.

`CALLS` is walked by tests/inductor/test_refused_calls.py, which compares with eager, and printed as
docs/checks.md by ``python -m tests.support.refused_calls``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Refused:
    """operator: its name. check: what its kernel requires. program: the call. good, bad: arguments
    that eager takes, and refuses. trained: floating arguments may require gradients."""

    operator: str
    check: str
    program: Callable[..., Any]
    good: Callable[[], Sequence[Any]]
    bad: Callable[[], Sequence[Any]]
    trained: bool = True

    @property
    def kept_by(self) -> str:
        """What refuses the bad call after a good one."""
        pairs = list(zip(self.good(), self.bad(), strict=True))
        tensors = [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]
        if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in tensors):
            return "capture: other sizes"
        return "the kernel" if len(tensors) == len(pairs) else "capture: another number"

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.check}"


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def u(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def n(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def f(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes, called on a copy."""
    return lambda x, *rest: function(x.clone(), *rest)


def _index(operator: str, program: Callable[..., Any], *rest: Any, dim: int = 0) -> list[Refused]:
    """Calls of an operator of (tensor, index, ...): too large, and too small."""
    good = n(0, 2, 1)
    return [
        Refused(operator, check, program, lambda: (r(3, 3), good, *rest),
                lambda bad=bad: (r(3, 3), bad, *rest))
        for check, bad in (("index below the size", n(0, 3, 1)), ("index not below 0", n(0, -4, 1)))
    ]  # fmt: skip


def _probabilities(operator: str, program: Callable[..., Any]) -> list[Refused]:
    return [
        Refused(operator, check, program, lambda: (f(0.2, 0.8, 0.5),), lambda bad=bad: (bad,))
        for check, bad in (
            ("probability at most 1", f(0.2, 1.5, 0.5)),
            ("probability at least 0", f(0.2, -0.5, 0.5)),
            ("probability is a number", f(0.2, float("nan"), 0.5)),
        )
    ]


def _number(
    operator: str, check: str, program: Callable[..., Any], good: Any, bad: Any, *shape: int
) -> Refused:
    """A call of (tensor, number)."""
    result = shape or (4, 6)
    return Refused(operator, check, program, lambda: (r(*result), good), lambda: (r(*result), bad))


CALLS: list[Refused] = [
    # losses
    Refused("binary_cross_entropy", "input at most 1", F.binary_cross_entropy,
            lambda: (u(4, 4), u(4, 4)), lambda: (u(4, 4) + 1, u(4, 4))),
    Refused("binary_cross_entropy", "input at least 0", F.binary_cross_entropy,
            lambda: (u(4, 4), u(4, 4)), lambda: (u(4, 4) - 1.1, u(4, 4))),
    Refused("binary_cross_entropy", "target between 0 and 1", F.binary_cross_entropy,
            lambda: (u(4, 4), u(4, 4)), lambda: (u(4, 4), u(4, 4) + 1)),
    Refused("binary_cross_entropy", "input is a number", F.binary_cross_entropy,
            lambda: (u(3), u(3)), lambda: (f(0.5, float("nan"), 0.5), u(3))),
    Refused("binary_cross_entropy", "input at most 1, weighted", F.binary_cross_entropy,
            lambda: (u(4, 4), u(4, 4), u(4, 4)), lambda: (u(4, 4) + 1, u(4, 4), u(4, 4)),
            trained=False),
    Refused("binary_cross_entropy", "input at most 1, bfloat16", F.binary_cross_entropy,
            lambda: (u(4, 4).bfloat16(), u(4, 4).bfloat16()),
            lambda: (u(4, 4).bfloat16() + 1, u(4, 4).bfloat16())),
    Refused("binary_cross_entropy", "reduction none",
            lambda p, t: F.binary_cross_entropy(p, t, reduction="none"),
            lambda: (u(4, 4), u(4, 4)), lambda: (u(4, 4) + 1, u(4, 4))),
    Refused("cross_entropy", "class below the number of classes", F.cross_entropy,
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, 5, 1))),
    Refused("cross_entropy", "class not below 0", F.cross_entropy,
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, -1, 1))),
    Refused("cross_entropy", "class below the number of classes, smoothed",
            lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, 5, 1))),
    Refused("cross_entropy", "class below the number of classes, weighted", F.cross_entropy,
            lambda: (r(3, 5), n(0, 4, 1), u(5)), lambda: (r(3, 5), n(0, 5, 1), u(5)),
            trained=False),
    Refused("cross_entropy", "class of pixels below the number of classes", F.cross_entropy,
            lambda: (r(2, 5, 3), n(0, 4, 1, 0, 0, 0).view(2, 3)),
            lambda: (r(2, 5, 3), n(0, 5, 1, 0, 0, 0).view(2, 3))),
    Refused("cross_entropy", "label smoothing at most 1",
            lambda x, t, s: F.cross_entropy(x, t, label_smoothing=s),
            lambda: (r(3, 5), n(0, 4, 1), 0.5), lambda: (r(3, 5), n(0, 4, 1), 1.5)),
    Refused("nll_loss", "class below the number of classes", F.nll_loss,
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, 5, 1))),
    Refused("nll_loss", "class not below 0", F.nll_loss,
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, -2, 1))),
    Refused("nll_loss2d", "class below the number of classes", F.nll_loss,
            lambda: (r(1, 5, 3, 1), n(0, 4, 1).view(1, 3, 1)),
            lambda: (r(1, 5, 3, 1), n(0, 5, 1).view(1, 3, 1))),
    Refused("multi_margin_loss", "class below the number of classes", F.multi_margin_loss,
            lambda: (r(3, 5), n(0, 4, 1)), lambda: (r(3, 5), n(0, 5, 1))),
    Refused("multi_margin_loss", "p is 1 or 2", lambda x, t, p: F.multi_margin_loss(x, t, p),
            lambda: (r(3, 5), n(0, 4, 1), 1), lambda: (r(3, 5), n(0, 4, 1), 3)),
    Refused("multilabel_margin_loss", "class below the number of classes",
            F.multilabel_margin_loss, lambda: (r(4), n(0, 3, -1, 1)), lambda: (r(4), n(0, 4, -1, 1))),
    Refused("smooth_l1_loss", "beta at least 0", lambda x, y, b: F.smooth_l1_loss(x, y, beta=b),
            lambda: (r(4), r(4), 0.5), lambda: (r(4), r(4), -0.5)),
    Refused("smooth_l1_loss", "beta at least 0, a constant",
            lambda x, y, bad: torch._C._nn.smooth_l1_loss(x, y, 1, -1.0 if bad else 1.0),
            lambda: (r(4), r(4), False), lambda: (r(4), r(4), True)),
    Refused("huber_loss", "delta above 0", lambda x, y, d: F.huber_loss(x, y, delta=d),
            lambda: (r(4), r(4), 0.5), lambda: (r(4), r(4), 0.0)),
    Refused("huber_loss", "delta above 0, negative", lambda x, y, d: F.huber_loss(x, y, delta=d),
            lambda: (r(4), r(4), 0.5), lambda: (r(4), r(4), -1.0)),
    Refused("ctc_loss", "input length at most the size", F.ctc_loss,
            lambda: (r(5, 1, 4).log_softmax(2), n(1, 2).view(1, 2), n(5), n(2)),
            lambda: (r(5, 1, 4).log_softmax(2), n(1, 2).view(1, 2), n(6), n(2))),
    Refused("gaussian_nll_loss", "variance at least 0", F.gaussian_nll_loss,
            lambda: (r(4), r(4), u(4)), lambda: (r(4), r(4), u(4) - 2)),
    Refused("triplet_margin_loss", "margin above 0",
            lambda a, p, q, m: F.triplet_margin_loss(a, p, q, margin=m),
            lambda: (r(4, 3), r(4, 3), r(4, 3), 0.5), lambda: (r(4, 3), r(4, 3), r(4, 3), -0.5)),
    Refused("hinge_embedding_loss", "operands of one size", F.hinge_embedding_loss,
            lambda: (r(4), r(4)), lambda: (r(4), r(3))),
    Refused("mse_loss", "operands that broadcast", F.mse_loss,
            lambda: (r(4), r(4)), lambda: (r(4), r(3))),
    Refused("cosine_embedding_loss", "one target for each pair", F.cosine_embedding_loss,
            lambda: (r(3, 4), r(3, 4), n(1, -1, 1)), lambda: (r(3, 4), r(3, 4), n(1, -1))),
    Refused("margin_ranking_loss", "operands of one size", F.margin_ranking_loss,
            lambda: (r(4), r(4), r(4)), lambda: (r(4), r(4), r(4, 1))),
    Refused("binary_cross_entropy_with_logits", "operands of one size",
            F.binary_cross_entropy_with_logits, lambda: (r(4), u(4)), lambda: (r(4), u(3))),
    Refused("kl_div", "operands that broadcast", F.kl_div,
            lambda: (r(4), u(4)), lambda: (r(4), u(3))),
    # indexes
    *_index("index_select", lambda x, i: x.index_select(0, i)),
    *_index("embedding", lambda x, i: F.embedding(i, x)),
    *_index("embedding_bag", lambda x, i: F.embedding_bag(i.view(1, 3), x)),
    *_index("gather", lambda x, i: x.gather(0, i.view(3, 1))),
    *_index("take", lambda x, i: x.view(3, 3)[:1].clone().take(i)),
    *_index("index", lambda x, i: x[i]),
    *_index("index, second dimension", lambda x, i: x[:, i]),
    *_index("index, two", lambda x, i: x[i, i]),
    *_index("index, behind operators", lambda x, i: (x.exp()[i] + 1).sum()),
    *_index("scatter", lambda x, i: x.scatter(0, i.view(3, 1), 1.0)),
    *_index("scatter, a tensor", lambda x, i: x.scatter(0, i.view(3, 1), x[:, :1])),
    *_index("scatter, reduce", lambda x, i: x.detach().scatter(0, i.view(3, 1), x.detach(), reduce="add") + x),
    *_index("scatter_add", lambda x, i: x.scatter_add(0, i.view(3, 1), x[:, :1])),
    *_index("scatter_reduce", lambda x, i: x.scatter_reduce(0, i.view(3, 1), x[:, :1], "amax")),
    *_index("index_add", lambda x, i: x.index_add(0, i, x)),
    *_index("index_copy", lambda x, i: x.index_copy(0, i, x)),
    *_index("index_fill", lambda x, i: x.index_fill(0, i, 1.0)),
    *_index("index_put", lambda x, i: x.index_put((i,), x)),
    *_index("index_put, accumulate", lambda x, i: x.index_put((i,), x, accumulate=True)),
    *_index("setitem", _written(lambda x, i: (x.__setitem__(i, 1.0), x)[1])),
    *_index("index_reduce", lambda x, i: x.index_reduce(0, i, x, "amax")),
    *_index("put", lambda x, i: x[:1].clone().put(i, x[0].clone())),
    Refused("one_hot", "class below the number of classes", lambda i: F.one_hot(i, 4),
            lambda: (n(0, 3, 1),), lambda: (n(0, 4, 1),)),
    Refused("one_hot", "class not below 0", lambda i: F.one_hot(i, 4),
            lambda: (n(0, 3, 1),), lambda: (n(0, -1, 1),)),
    Refused("one_hot", "class not below 0, any number", lambda i: F.one_hot(i),
            lambda: (n(0, 3, 1),), lambda: (n(0, -1, 1),)),
    Refused("masked_scatter", "as many elements as places",
            lambda x, m, s: x.masked_scatter(m, s),
            lambda: (r(4), f(0, 1, 1, 0) > 0, r(2)), lambda: (r(4), f(1, 1, 1, 0) > 0, r(2))),
    Refused("select", "index below the size", lambda x, i: x.select(0, i),
            lambda: (r(4, 3), 2), lambda: (r(4, 3), 4)),
    Refused("getitem", "index below the size", lambda x, i: x[i],
            lambda: (r(4, 3), 2), lambda: (r(4, 3), -5)),
    Refused("narrow", "a part of the dimension", lambda x, i: x.narrow(0, i, 2) * 2,
            lambda: (r(4, 3), 2), lambda: (r(4, 3), 3)),
    Refused("index_select", "a dimension that there is", lambda x, i, d: x.index_select(d, i),
            lambda: (r(4, 3), n(0, 1), 1), lambda: (r(4, 3), n(0, 1), 2)),
    Refused("max_unpool2d", "place inside the result",
            lambda x, i: F.max_unpool2d(x, i, 2), lambda: (r(1, 1, 1, 2), n(0, 3).view(1, 1, 1, 2)),
            lambda: (r(1, 1, 1, 2), n(0, 30).view(1, 1, 1, 2))),
    # random numbers
    *_probabilities("bernoulli", torch.bernoulli),
    Refused("multinomial", "probability at least 0", lambda p: torch.multinomial(p, 2),
            lambda: (f(0.2, 0.3, 0.5),), lambda: (f(0.2, -0.3, 0.5),)),
    Refused("multinomial", "probability is a number", lambda p: torch.multinomial(p, 2),
            lambda: (f(0.2, 0.3, 0.5),), lambda: (f(0.2, float("nan"), 0.5),)),
    Refused("multinomial", "as many positive probabilities as samples",
            lambda p: torch.multinomial(p, 2), lambda: (f(0.2, 0.3, 0.5),), lambda: (f(0, 0, 0),)),
    Refused("bernoulli_", "p at most 1", lambda x, p: torch.empty_like(x).bernoulli_(p),
            lambda: (r(4), 0.5), lambda: (r(4), 1.5)),
    Refused("bernoulli_", "tensor p at most 1", lambda p: torch.empty_like(p).bernoulli_(p),
            lambda: (u(4),), lambda: (u(4) + 1,)),
    Refused("normal", "deviation at least 0", lambda m, s: torch.normal(m, s),
            lambda: (r(4), u(4)), lambda: (r(4), u(4) - 2)),
    Refused("normal", "number as deviation at least 0", lambda m, s: torch.normal(m, s),
            lambda: (r(4), 1.0), lambda: (r(4), -1.0)),
    Refused("normal_", "deviation at least 0", lambda x, s: torch.empty_like(x).normal_(0, s),
            lambda: (r(4), 1.0), lambda: (r(4), -1.0)),
    Refused("uniform_", "from at most to", lambda x, b: torch.empty_like(x).uniform_(0, b),
            lambda: (r(4), 1.0), lambda: (r(4), -1.0)),
    Refused("exponential_", "lambda above 0", lambda x, b: torch.empty_like(x).exponential_(b),
            lambda: (r(4), 1.0), lambda: (r(4), -1.0)),
    Refused("geometric_", "p inside 0 and 1", lambda x, p: torch.empty_like(x).geometric_(p),
            lambda: (r(4), 0.5), lambda: (r(4), 1.5)),
    Refused("cauchy_", "sigma above 0", lambda x, s: torch.empty_like(x).cauchy_(0, s),
            lambda: (r(4), 0.5), lambda: (r(4), -1.0)),
    Refused("log_normal_", "deviation above 0", lambda x, s: torch.empty_like(x).log_normal_(0, s),
            lambda: (r(4), 0.5), lambda: (r(4), -1.0)),
    Refused("random_", "from below to", lambda x, k: torch.empty_like(x).random_(3, k),
            lambda: (r(4), 5), lambda: (r(4), 2)),
    Refused("randint", "low below high", lambda k: torch.randint(3, k, (2,)),
            lambda: (5,), lambda: (2,)),
    Refused("randperm", "a size at least 0", lambda x, k: torch.randperm(k) + x,
            lambda: (r(1), 5), lambda: (r(1), -2)),
    Refused("poisson", "rate at least 0", torch.poisson, lambda: (u(4),), lambda: (u(4) - 2,),
            trained=False),
    Refused("dropout", "p at most 1", lambda x, p: F.dropout(x, p),
            lambda: (r(4), 0.5), lambda: (r(4), 1.5)),
    Refused("torch.dropout", "p at most 1", lambda x, p: torch.dropout(x, p, True),
            lambda: (r(4), 0.5), lambda: (r(4), 1.5)),
    Refused("feature_dropout", "p at least 0", lambda x, p: torch.feature_dropout(x, p, True),
            lambda: (r(4, 3, 2), 0.5), lambda: (r(4, 3, 2), -0.5)),
    Refused("alpha_dropout", "p at most 1", lambda x, p: torch.alpha_dropout(x, p, True),
            lambda: (r(4), 0.5), lambda: (r(4), 1.5)),
    Refused("rrelu", "lower at most upper", lambda x, k: torch.rrelu(x, 0.3, k, True),
            lambda: (r(4), 0.5), lambda: (r(4), 0.1)),
    # activations
    _number("hardtanh", "min at most max", lambda x, k: F.hardtanh(x, 0.0, k), 1.0, -1.0),
    _number("celu", "alpha is not 0", lambda x, k: F.celu(x, k), 1.0, 0.0),
    _number("softshrink", "lambda at least 0", lambda x, k: F.softshrink(x, k), 0.5, -0.5),
    _number("glu", "an even size", lambda x, k: F.glu(x, k), 1, 0, 3, 4),
    _number("softmax", "a dimension that there is", lambda x, k: x.softmax(k), 1, 2),
    _number("log_softmax", "a dimension that there is", lambda x, k: x.log_softmax(k), 1, -3),
    _number("leaky_relu_", "slope at least 0 where it is differentiated",
            lambda x, k: F.leaky_relu_((x * 2), k).sum(), 0.5, -0.5),
    _number("elu_", "alpha at least 0 where it is differentiated",
            lambda x, k: F.elu_((x * 2), k).sum(), 0.5, -0.5),
    _number("celu_", "alpha at least 0 where it is differentiated",
            lambda x, k: F.celu_((x * 2), k).sum(), 0.5, -0.5),
    Refused("prelu", "as many weights as channels", F.prelu,
            lambda: (r(2, 3), r(3)), lambda: (r(2, 3), r(2))),
    # elementwise
    Refused("clamp", "bound in the dtype", lambda x, k: x.clamp(max=k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("clamp", "negative bound in the dtype", lambda x, k: x.clamp(min=k),
            lambda: (torch.arange(4, dtype=torch.int8), 3),
            lambda: (torch.arange(4, dtype=torch.int8), -300)),
    Refused("clamp", "both bounds in the dtype", lambda x, k: x.clamp(0, k),
            lambda: (torch.arange(4, dtype=torch.int8), 3),
            lambda: (torch.arange(4, dtype=torch.int8), 300)),
    Refused("clamp_max", "bound in the dtype", lambda x, k: x.clamp_max(k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("clamp_", "bound in the dtype", _written(lambda x, k: x.clamp_(max=k)),
            lambda: (torch.arange(4, dtype=torch.int16), 3),
            lambda: (torch.arange(4, dtype=torch.int16), 100_000)),
    Refused("clamp, float16", "bound in the dtype", lambda x, k: x.clamp(max=k),
            lambda: (r(4).half(), 3.0), lambda: (r(4).half(), 1e6)),
    *(
        Refused(name, "number in the dtype", program,
                lambda: (torch.arange(4, dtype=torch.uint8), 3),
                lambda: (torch.arange(4, dtype=torch.uint8), 300))
        for name, program in (
            ("clip", lambda x, k: torch.clip(x, max=k)),
            ("new_full", lambda x, k: x.new_full((3,), k)),
            ("index_fill", lambda x, k: x.index_fill(0, n(1), k)),
            ("masked_fill_", _written(lambda x, k: x.masked_fill_(x > 1, k))),
            ("scatter", lambda x, k: x.scatter(0, n(1), k)),
            ("hardtanh", lambda x, k: F.hardtanh(x, 1, k)),
        )
    ),
    *(
        Refused(name, "number in float16", program,
                lambda: (r(4).half(), 0.5), lambda: (r(4).half(), 1e6))
        for name, program in (
            ("masked_fill", lambda x, k: x.masked_fill(x > 1, k)),
            ("full_like", torch.full_like),
            ("fill_", _written(lambda x, k: x.fill_(k))),
            ("threshold", lambda x, k: F.threshold(x, 0.1, k)),
            ("pad", lambda x, k: F.pad(x, (1, 1), value=k)),
        )
    ),
    Refused("add", "alpha in the dtype", lambda x, k: torch.add(x, x, alpha=k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("add", "alpha of bools has no fraction", lambda x, k: torch.add(x, x, alpha=k),
            lambda: (torch.tensor([True, False]), 2),
            lambda: (torch.tensor([True, False]), 2.5)),
    Refused("full_like", "number in the dtype", lambda x, k: torch.full_like(x, k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("full", "number in the dtype", lambda k: torch.full((3,), k, dtype=torch.int8),
            lambda: (3,), lambda: (300,)),
    Refused("fill_", "number in the dtype", _written(lambda x, k: x.fill_(k)),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("masked_fill", "number in the dtype", lambda x, k: x.masked_fill(x > 1, k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("where", "number in the dtype", lambda x, k: torch.where(x > 1, x, k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("threshold", "number in the dtype", lambda x, k: F.threshold(x, 1, k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("pad", "number in the dtype", lambda x, k: F.pad(x, (1, 1), value=k),
            lambda: (torch.arange(4, dtype=torch.uint8), 3),
            lambda: (torch.arange(4, dtype=torch.uint8), 300)),
    Refused("integer division", "divisor is not 0", lambda x, y: x // y,
            lambda: (n(4, 5), n(2, 3)), lambda: (n(4, 5), n(2, 0))),
    Refused("integer remainder", "divisor is not 0", lambda x, y: x % y,
            lambda: (n(4, 5), n(2, 3)), lambda: (n(4, 5), n(2, 0))),
    Refused("fmod", "divisor is not 0", torch.fmod,
            lambda: (n(4, 5), n(2, 3)), lambda: (n(4, 5), n(2, 0))),
    Refused("div, trunc", "divisor is not 0", lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            lambda: (n(4, 5), n(2, 3)), lambda: (n(4, 5), n(2, 0))),
    Refused("integer division by a number", "divisor is not 0", lambda x, k: x // k,
            lambda: (n(4, 5), 2), lambda: (n(4, 5), 0)),
    Refused("remainder by a number", "divisor is not 0", lambda x, k: x % k,
            lambda: (n(4, 5), 2), lambda: (n(4, 5), 0)),
    Refused("pow of integers", "exponent at least 0", lambda x, k: x ** k,
            lambda: (n(4, 5), 2), lambda: (n(4, 5), -2)),
    Refused("lerp", "operands that broadcast", torch.lerp,
            lambda: (r(3), r(3), r(3)), lambda: (r(3), r(3), r(2))),
    Refused("polygamma", "order at least 0", lambda x, k: torch.polygamma(k, x),
            lambda: (u(3), 1), lambda: (u(3), -1)),
    Refused("mvlgamma", "elements above (p - 1) / 2", lambda x, k: torch.mvlgamma(x, k),
            lambda: (u(3) + 2, 2), lambda: (u(3) + 2, -1)),
    Refused("bitwise shift", "integers", lambda x, k: x << k,
            lambda: (n(4, 5), 1), lambda: (n(4, 5), 1.5)),
    # reductions and scans
    _number("sum", "a dimension that there is", lambda x, k: x.sum(k), 1, 2),
    _number("mean", "a dimension that there is", lambda x, k: x.mean(k), 1, -3),
    _number("amax", "a dimension that there is", lambda x, k: x.amax(k), 1, 2),
    _number("cumsum", "a dimension that there is", lambda x, k: x.cumsum(k), 1, 2),
    _number("argmax", "a dimension that there is", lambda x, k: x.argmax(k), 1, 2),
    _number("norm", "a dimension that there is", lambda x, k: torch.linalg.vector_norm(x, dim=k), 1, 2),
    _number("kthvalue", "k in the dimension", lambda x, k: x.kthvalue(k).values, 2, 9),
    _number("topk", "k in the dimension", lambda x, k: x.topk(k).values, 2, 9),
    _number("quantile", "q inside 0 and 1", lambda x, k: x.quantile(k), 0.5, 1.5),
    Refused("quantile", "tensor q inside 0 and 1", torch.quantile,
            lambda: (r(5), f(0.5, 0.7)), lambda: (r(5), f(0.5, 1.7)), trained=False),
    Refused("nanquantile", "tensor q inside 0 and 1", torch.nanquantile,
            lambda: (r(5), f(0.5, 0.7)), lambda: (r(5), f(0.5, -1.7)), trained=False),
    Refused("bincount", "values at least 0", torch.bincount,
            lambda: (n(0, 3, 1),), lambda: (n(0, -3, 1),)),
    Refused("bincount", "minlength at least 0", lambda x, k: torch.bincount(x, minlength=k),
            lambda: (n(0, 3, 1), 2), lambda: (n(0, 3, 1), -2)),
    Refused("histc", "bins above 0", lambda x, k: torch.histc(x, k, -1, 1),
            lambda: (r(5), 4), lambda: (r(5), -4), trained=False),
    Refused("histc", "min at most max", lambda x, k: torch.histc(x, 4, 0, k),
            lambda: (r(5), 4), lambda: (r(5), -4), trained=False),
    Refused("histc", "finite range", lambda x: torch.histc(x, 4),
            lambda: (r(3),), lambda: (f(1, float("nan"), 2),), trained=False),
    Refused("searchsorted", "sorter inside the sequence",
            lambda s, v, i: torch.searchsorted(s, v, sorter=i),
            lambda: (f(1, 2, 3), f(2.5, 0), n(0, 1, 2)), lambda: (f(1, 2, 3), f(2.5, 0), n(0, 1, 9)),
            trained=False),
    Refused("renorm", "maxnorm at least 0", lambda x, k: x.renorm(2, 0, k),
            lambda: (r(3, 4), 1.0), lambda: (r(3, 4), -1.0)),
    Refused("renorm", "p above 0", lambda x, k: x.renorm(k, 0, 1.0),
            lambda: (r(3, 4), 1.0), lambda: (r(3, 4), -1.0)),
    Refused("repeat_interleave", "repeats at least 0",
            lambda x, k: x.repeat_interleave(k, dim=0),
            lambda: (r(3, 4), n(1, 2, 0)), lambda: (r(3, 4), n(1, -2, 0)), trained=False),
    _number("repeat_interleave", "number of repeats at least 0",
            lambda x, k: x.repeat_interleave(k), 2, -2),
    # shapes
    _number("unfold", "size in the dimension", lambda x, k: x.unfold(1, k, 1) * 2, 2, 9),
    _number("unfold", "step above 0", lambda x, k: x.unfold(1, 2, k) * 2, 1, 0),
    _number("chunk", "chunks above 0", lambda x, k: x.chunk(k)[0] * 2, 2, 0),
    _number("split", "size at least 0", lambda x, k: x.split(k)[0] * 2, 2, -1),
    _number("roll", "a dimension that there is", lambda x, k: x.roll(1, k), 1, 2),
    _number("flip", "a dimension that there is", lambda x, k: x.flip(k), 1, 2),
    _number("expand", "sizes that expand", lambda x, k: x.expand(k, 4, 6) * 2, 2, -3),
    _number("view", "as many elements", lambda x, k: x.view(k, -1) * 2, 2, 7),
    _number("reshape", "as many elements", lambda x, k: x.reshape(k, -1) * 2, 2, 7),
    _number("repeat", "sizes at least 0", lambda x, k: x.repeat(k, 1), 2, -1),
    _number("pixel_shuffle", "channels divisible", lambda x, k: F.pixel_shuffle(x, k), 2, 3, 1, 4, 2, 2),
    _number("pixel_unshuffle", "sizes divisible", lambda x, k: F.pixel_unshuffle(x, k), 2, 3, 1, 1, 4, 4),
    _number("channel_shuffle", "channels divisible", lambda x, k: F.channel_shuffle(x, k), 2, 3, 1, 4, 2, 2),
    _number("pad, reflect", "padding below the size",
            lambda x, k: F.pad(x, (k, k), mode="reflect"), 2, 9, 2, 6),
    _number("pad, circular", "padding at most the size",
            lambda x, k: F.pad(x, (k, k), mode="circular"), 2, 9, 2, 6),
    _number("pad, constant", "sizes at least 0", lambda x, k: F.pad(x, (k, k)), 2, -9, 2, 6),
    _number("pad, replicate", "sizes at least 0",
            lambda x, k: F.pad(x, (k, k), mode="replicate"), 2, -9, 2, 6),
    _number("interpolate", "sizes above 0", lambda x, k: F.interpolate(x, size=(k, 2)), 2, 0, 1, 1, 4, 4),
    _number("interpolate, bilinear", "sizes above 0",
            lambda x, k: F.interpolate(x, size=(k, 2), mode="bilinear"), 2, -1, 1, 1, 4, 4),
    _number("tril", "two dimensions", lambda x, k: x.flatten(k).tril(), 1, 0),
    _number("diagonal", "dimensions that differ", lambda x, k: x.diagonal(0, 0, k) * 2, 1, 0),
    _number("diag_embed", "dimensions that differ", lambda x, k: torch.diag_embed(x, 0, 0, k), 1, 0),
    _number("cdist", "p at least 0", lambda x, k: torch.cdist(x, x + 1, k), 2.0, -1.0),
    _number("pdist", "p at least 0", lambda x, k: F.pdist(x, k), 2.0, -1.0),
    _number("max_pool2d", "padding at most half of the kernel",
            lambda x, k: F.max_pool2d(x, 2, padding=k), 1, 2, 1, 1, 6, 6),
    _number("max_pool2d", "a result with elements", lambda x, k: F.max_pool2d(x, k), 2, 9, 1, 1, 6, 6),
    _number("avg_pool2d", "padding at most half of the kernel",
            lambda x, k: F.avg_pool2d(x, 2, padding=k), 1, 2, 1, 1, 6, 6),
    _number("avg_pool2d", "divisor is not 0",
            lambda x, k: F.avg_pool2d(x, 2, divisor_override=k), 1, 0, 1, 1, 6, 6),
    _number("avg_pool1d", "stride above 0", lambda x, k: F.avg_pool1d(x, 2, k), 1, 0, 1, 1, 6),
    _number("adaptive_avg_pool2d", "sizes at least 0",
            lambda x, k: F.adaptive_avg_pool2d(x, k), 2, -1, 1, 1, 6, 6),
    _number("conv2d", "kernel in the padded size",
            lambda x, k: F.conv2d(x, torch.ones(1, 1, k, k)), 2, 9, 1, 1, 6, 6),
    _number("conv2d", "stride above 0",
            lambda x, k: F.conv2d(x, torch.ones(1, 1, 2, 2), stride=k), 2, 0, 1, 1, 6, 6),
    _number("conv2d", "padding at least 0",
            lambda x, k: F.conv2d(x, torch.ones(1, 1, 2, 2), padding=k), 2, -1, 1, 1, 6, 6),
    _number("conv2d", "groups divide the channels",
            lambda x, k: F.conv2d(x, torch.ones(4, 4 // k, 1, 1), groups=k), 2, 3, 1, 4, 6, 6),
    _number("fold", "sizes that fit", lambda x, k: F.fold(x, (k, 4), 2), 4, 5, 1, 4, 9),
    _number("im2col", "a result with elements", lambda x, k: F.unfold(x, k), 2, 9, 1, 1, 6, 6),
    Refused("grid_sample", "sizes that fit", lambda x, g: F.grid_sample(x, g, align_corners=False),
            lambda: (r(1, 1, 4, 4), r(1, 2, 2, 2)), lambda: (r(1, 1, 4, 4), r(2, 2, 2, 2))),
    Refused("as_strided", "a part of the storage", lambda x, k: torch.as_strided(x, (k,), (1,)) * 2,
            lambda: (r(6), 4), lambda: (r(6), 9)),
    Refused("linspace", "steps at least 0", lambda x, k: torch.linspace(0, 1, k) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("logspace", "steps at least 0", lambda x, k: torch.logspace(0, 1, k) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("arange", "step is not 0", lambda x, k: torch.arange(0, 4, k) + x,
            lambda: (r(1), 1), lambda: (r(1), 0)),
    Refused("arange", "bounds that agree with the step", lambda x, k: torch.arange(0, k, 1) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("arange", "finite bounds", lambda x, k: torch.arange(0, k, 1) + x,
            lambda: (r(1), 3.0), lambda: (r(1), float("inf"))),
    Refused("eye", "a size at least 0", lambda x, k: torch.eye(k) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("zeros", "sizes at least 0", lambda x, k: torch.zeros(k) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("cat", "sizes that fit", lambda x, y: torch.cat([x, y]),
            lambda: (r(2, 3), r(1, 3)), lambda: (r(2, 3), r(1, 4))),
    Refused("stack", "sizes that are equal", lambda x, y: torch.stack([x, y]),
            lambda: (r(2, 3), r(2, 3)), lambda: (r(2, 3), r(1, 3))),
    Refused("tensor_split", "indices of integers", lambda x, k: x.tensor_split(k)[0] * 2,
            lambda: (r(4), 2), lambda: (r(4), 0)),
    Refused("bucketize", "boundaries of one dimension", torch.bucketize,
            lambda: (r(4), f(0, 1)), lambda: (r(4), f(0, 1).view(1, 2)), trained=False),
    Refused("unflatten", "sizes that multiply to it", lambda x, k: x.unflatten(0, (k, -1)) * 2,
            lambda: (r(4), 2), lambda: (r(4), 3)),
    # matrices
    Refused("cholesky", "positive definite", torch.linalg.cholesky,
            lambda: (torch.eye(3) * 2,), lambda: (-torch.eye(3),)),
    Refused("inverse", "invertible", torch.linalg.inv,
            lambda: (torch.eye(3) * 2,), lambda: (torch.zeros(3, 3),)),
    Refused("solve", "invertible", torch.linalg.solve,
            lambda: (torch.eye(3) * 2, r(3)), lambda: (torch.zeros(3, 3), r(3))),
    Refused("eigh", "finite", lambda x: torch.linalg.eigvalsh(x),
            lambda: (torch.eye(3) * 2,), lambda: (torch.full((3, 3), float("nan")),)),
    Refused("svd", "finite", lambda x: torch.linalg.svdvals(x),
            lambda: (torch.eye(3) * 2,), lambda: (torch.full((3, 3), float("nan")),)),
    Refused("lu_factor", "invertible", lambda x: torch.linalg.lu_factor(x).LU,
            lambda: (torch.eye(3) * 2,), lambda: (torch.zeros(3, 3),)),
    Refused("triu_indices", "sizes at least 0", lambda x, k: torch.triu_indices(k, 3) + x,
            lambda: (r(1), 3), lambda: (r(1), -3)),
    Refused("matmul", "sizes that fit", torch.matmul,
            lambda: (r(2, 3), r(3, 2)), lambda: (r(2, 3), r(4, 2))),
    Refused("addmm", "sizes that fit", torch.addmm,
            lambda: (r(2), r(2, 3), r(3, 2)), lambda: (r(3), r(2, 3), r(3, 2))),
    Refused("linear", "sizes that fit", F.linear,
            lambda: (r(2, 3), r(4, 3), r(4)), lambda: (r(2, 3), r(4, 3), r(5))),
    Refused("matrix_power", "invertible", lambda x: torch.linalg.matrix_power(x, -1),
            lambda: (torch.eye(3) * 2,), lambda: (torch.zeros(3, 3),)),
    # norms
    Refused("batch_norm", "more than one value a channel",
            lambda x: F.batch_norm(x, None, None, training=True),
            lambda: (r(4, 3),), lambda: (r(1, 3),)),
    Refused("batch_norm", "as many weights as channels",
            lambda x, w: F.batch_norm(x, None, None, w, training=True),
            lambda: (r(4, 3), r(3)), lambda: (r(4, 3), r(4))),
    Refused("layer_norm", "the shape of the last dimensions",
            lambda x, w: F.layer_norm(x, w.shape, w), lambda: (r(4, 3), r(3)), lambda: (r(4, 3), r(4))),
    Refused("group_norm", "groups divide the channels", lambda x, k: F.group_norm(x, k),
            lambda: (r(2, 4, 3), 2), lambda: (r(2, 4, 3), 3)),
    Refused("instance_norm", "more than one value", lambda x: F.instance_norm(x),
            lambda: (r(2, 3, 4),), lambda: (r(2, 3, 1),)),
    Refused("local_response_norm", "three dimensions", lambda x: F.local_response_norm(x, 2),
            lambda: (r(2, 3, 4),), lambda: (r(2, 3),)),
    Refused("scaled_dot_product_attention", "sizes that fit", F.scaled_dot_product_attention,
            lambda: (r(1, 1, 4, 8), r(1, 1, 4, 8), r(1, 1, 4, 8)),
            lambda: (r(1, 1, 4, 8), r(1, 1, 4, 4), r(1, 1, 4, 8))),
    Refused("pack_padded_sequence", "lengths above 0",
            lambda x, k: torch.nn.utils.rnn.pack_padded_sequence(x, k, enforce_sorted=False).data,
            lambda: (r(3, 2, 4), n(3, 2)), lambda: (r(3, 2, 4), n(3, 0))),
    Refused("pack_padded_sequence", "lengths that are sorted",
            lambda x, k: torch.nn.utils.rnn.pack_padded_sequence(x, k).data,
            lambda: (r(3, 2, 4), n(3, 2)), lambda: (r(3, 2, 4), n(2, 3))),
]  # fmt: skip


_HEAD = """\
# Checks of values and numbers

Checks that ATen's kernels make and that a decomposition or a generated kernel replaces, one row each.
For each row, tests/inductor/test_refused_calls.py makes a call that eager mode refuses. The compiled
function refuses it too, as its first call and after good ones. Generated by
`python -m tests.support.refused_calls > docs/checks.md`.

The last column says where the check is made:

- **the kernel**: the check is of elements, which only the kernel reads. It reports the first element
  that fails, whether the result is read as a whole, in part or not at all. Writes of the graph are
  undone, and the call runs in eager mode, which raises its own error. On GPUs eager mode asserts on the
  device, and so do generated kernels. Operators that are left to ATen raise by themselves.
- **capture: another number**: the number is known before the graph runs. A number that varies between
  calls is an input of the graph, with a guard on the values that its operators accept. A number that
  fails the guard is captured again, and the operator then runs in eager mode.
- **capture: other sizes**: guards on shapes and dtypes lead to another capture, which refuses the call.

| operator | check | made by |
|---|---|---|
"""


def page() -> str:
    """The text of docs/checks.md."""
    rows = (f"| {call.operator} | {call.check} | {call.kept_by} |\n" for call in CALLS)
    return _HEAD + "".join(dict.fromkeys(rows))


if __name__ == "__main__":
    print(page(), end="")
