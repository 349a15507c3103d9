"""What depends on the values of tensors: one explained graph break, with everything around it
captured. Sizes that depend on them are captured too (test_data_sizes.py has more)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.eager_reference import same
from tests.support.releases import RELEASE

X, Y = torch.arange(12.0).reshape(3, 4) - 5.5, torch.arange(12.0).flip(0).reshape(3, 4) - 7.5
N, M = torch.tensor(2), torch.tensor(3)
LENGTHS, OTHERS = torch.tensor([1, 2]), torch.tensor([2, 1])


def doubled_until(x):
    n = 0
    while x.abs().sum() < 500:
        x = x * 2
        n += 1
    return x, n


def masked_store(x):
    y = x.clone()
    y[y > 0] = 1
    return y * 2


def masked_update(x):
    y = x.clone()
    y[y > 0] = y[y > 0] * 3
    return y * 2


def early_exit(x):
    for i in range(5):
        x = x * 2
        if x.abs().max() > 50:
            return x, i
    return x, -1


def in_helper(x, n):
    def width(t):
        return t.item() + 1

    return (x * 2).repeat(1, width(n)) + 1


def kept_in_a_list(x):
    seen = []
    for row in x:
        seen.append(row.sum().item())
    return seen, x * 2


#: name -> ((graphs, breaks, kinds), program, calls). None: it depends on how numbers that change
#: and loops that break are captured, which other tests pin down.
VALUES = {
    "item": ((3, 1, "data_dependent_value"), lambda x: x * x.sum().item() + 1, (X,), (Y,)),
    "item used twice": (
        (None, None, "data_dependent_value"),
        lambda x, n: x[: n.item()] * n.item(),
        (X, N),
        (X, M),
    ),
    "item in a helper": ((None, None, "data_dependent_value"), in_helper, (X, N), (X, M)),
    "items in a loop": (
        (None, None, "data_dependent_value live_iterator"),
        kept_in_a_list,
        (X,),
        (Y,),
    ),
    "tolist": (
        (None, None, "data_dependent_value"),
        lambda x: [v * 2 for v in (x + 1).tolist()[0]],
        (X,),
        (Y,),
    ),
    "tolist of a number": ((0, 1, "data_dependent_value"), lambda n: n.tolist() + 1, (N,), (M,)),
    "float": ((3, 1, "data_dependent_value"), lambda x, n: (x + 1) * float(n) + 1, (X, N), (X, M)),
    "complex": ((2, 1, "data_dependent_value"), lambda x, n: complex(n) * x, (X, N), (X, M)),
    "bool": (
        (3, 1, "data_dependent_branch"),
        lambda x, n: (x + 1) * bool(n > 2) + 1,
        (X, N),
        (X, M),
    ),
    "text": ((3, 1, "data_dependent_value"), lambda x: (str(x.sum()), x * 2), (X,), (Y,)),
    "f-string": (
        (3, 1, "data_dependent_value"),
        lambda x: (f"{x.sum():.2f} {x.shape}", x * 2),
        (X,),
        (Y,),
    ),
    "format of an item": ((1, 1, "data_dependent_value"), lambda n: f"{n.item():03d}", (N,), (M,)),
    "range(item)": (
        (None, None, "data_dependent_value"),
        lambda x, n: sum((x * i for i in range(n.item())), x),
        (X, N),
        (X, M),
    ),
    "range(tensor)": (
        (None, None, "data_dependent_value"),
        lambda x, n: [x * i for i in range(n)],
        (X, N),
        (X, M),
    ),
    "slice by an item": (
        (None, None, "data_dependent_value"),
        lambda x, n: (x * 2)[: n.item()] * 2,
        (X, N),
        (X, M),
    ),
    "slice by a tensor": ((2, 1, "data_dependent_value"), lambda x, n: x[:n] * 2, (X, N), (X, M)),
    "list by a tensor": (
        (1, 1, "data_dependent_value"),
        lambda x, n: [x, x * 2, x * 3, x * 4][n],
        (X, N),
        (X, M),
    ),
    "split by a list": (
        (None, None, "data_dependent_value"),
        lambda x, n: [part * 2 for part in (x + 1).split(n.tolist())],
        (X, LENGTHS),
        (X, OTHERS),
    ),
    "view by items": (
        (None, None, "data_dependent_value"),
        lambda x, n: (x + 1).view(n.item(), -1) * 2,
        (X, N),
        (X, M),
    ),
    "tensor of tensors": (
        (2, 1, "data_dependent_value"),
        lambda x: torch.tensor([x.sum(), x.mean()]) * 2,
        (X,),
        (Y,),
    ),
    "tensor of items": (
        (3, 1, "data_dependent_value"),
        lambda x: torch.tensor([x.sum().item(), 1.0]) * 2,
        (X,),
        (Y,),
    ),
    "one_hot without a number": (
        (3, 1, "data_dependent_value"),
        lambda n: F.one_hot(n.view(1)) * 2,
        (N,),
        (M,),
    ),
    "`in` a tensor": ((1, 1, "data_dependent_value"), lambda x: (2.5 in x, x * 2), (X,), (Y,)),
    "equal": ((1, 1, "data_dependent_value"), lambda x: (torch.equal(x, x), x * 2), (X,), (Y,)),
    "allclose": (
        (2, 2, "data_dependent_value"),
        lambda x, y: (x * 2, torch.allclose(x, y)),
        (X, X),
        (X, Y),
    ),
    "sorted tensors": (
        (1, 1, "data_dependent_branch"),
        lambda x: sorted([x.sum(), x.mean(), x.max()]),
        (X,),
        (Y,),
    ),
    "max of tensors": (
        (2, 1, "data_dependent_branch"),
        lambda x: max(x.sum(), x.mean()) * 2,
        (X,),
        (Y,),
    ),
    "is_nonzero": (
        (1, 1, "data_dependent_value"),
        lambda x, n: x * 2 if n.is_nonzero() else x,
        (X, N),
        (X, N * 0),
    ),
    "numpy() and back": (
        (None, None, "data_dependent_value unknown_native"),
        lambda x: torch.from_numpy((x * 2).numpy() + 1) * 2,
        (X,),
        (Y,),
    ),
    "NumPy function": ((2, 1, "data_dependent_value"), lambda x: np.sin(x * 2) + 1, (X,), (Y,)),
    "asarray": (
        (None, None, "data_dependent_value unknown_native"),
        lambda x: (np.asarray(x * 2) + 1).shape,
        (X,),
        (Y,),
    ),
    "apply_": (
        (2, 1, "data_dependent_value"),
        lambda x: x.clone().apply_(lambda v: v + 1) * 2,
        (X,),
        (Y,),
    ),
    "map_": (
        (2, 1, "data_dependent_value"),
        lambda x: x.clone().map_(x, lambda a, b: a + b) * 2,
        (X,),
        (Y,),
    ),
    "data_ptr": (
        (1, 2, "data_dependent_value"),
        lambda x: (x.data_ptr() == x.data_ptr(), x * 2),
        (X,),
        (Y,),
    ),
}
BRANCHES = {
    "if": (
        (2, 1, "data_dependent_branch"),
        lambda x: x + 1 if x.sum() > 0 else x - 1,
        (X,),
        (Y,),
        (-X,),
        (X,),
    ),
    "if any": (
        (3, 1, "data_dependent_branch"),
        lambda x: x * 2 if torch.any(x > 100) else x * 3,
        (X,),
        (Y * 100,),
    ),
    "if all, method": (
        (2, 1, "data_dependent_branch"),
        lambda x: (x * 2).sum() if (x == x).all() else None,
        (X,),
        (Y,),
    ),
    "not": ((2, 1, "data_dependent_branch"), lambda x: (not x.sum() > 0, x * 2), (X,), (-X,)),
    "and": ((2, 1, "data_dependent_branch"), lambda x: (x.sum() > -100) and x * 2, (X,), (Y,)),
    "chained comparison": (
        (2, 1, "data_dependent_branch"),
        lambda x: (0 < x.sum() < 100, x * 2),
        (X,),
        (Y,),
    ),
    "while": ((None, None, "data_dependent_branch"), doubled_until, (X,), (Y,)),
    "early exit": ((None, None, "data_dependent_branch"), early_exit, (X,), (X / 100,)),
    "assert": (
        (None, None, "data_dependent_branch live_iterator"),
        lambda x: [None for _ in range(1) if (x < 100).all()] and x * 2,
        (X,),
        (Y,),
    ),
    "ternary in a call": (
        (2, 1, "data_dependent_branch"),
        lambda x: torch.sin(x if x.mean() > 0 else -x),
        (X,),
        (-X,),
    ),
}
SHAPES = {}
CAPTURED = {
    "index by a tensor": ((1, 0, ""), lambda x, n: x[n] * 2, (X, N), (X, N * 0)),
    "index by argmax": ((1, 0, ""), lambda x: x[x.argmax() // 4] * 2, (X,), (Y,)),
    "arange by a tensor": ((1, 0, ""), lambda n: torch.arange(n) * 2, (N,), (M,)),
    "zeros by a tensor": ((1, 0, ""), lambda n: torch.zeros(n, 2) + 1, (N,), (M,)),
    "full by a tensor": ((1, 0, ""), lambda n: torch.full((2,), n) + 1, (N,), (M,)),
    "int": ((1, 0, ""), lambda x, n: (x + 1) * int(n) + 1, (X, N), (X, M)),
    "nonzero": ((1, 0, ""), lambda x: torch.nonzero(x > 0) * 2, (X,), (Y,)),
    "nonzero as a tuple": (
        (1, 0, ""),
        lambda x: (x + 1)[(x > 0).nonzero(as_tuple=True)] * 2,
        (X,),
        (Y,),
    ),
    "masked_select": (
        (1, 0, ""),
        lambda x: torch.masked_select(x + 1, x > 0) * 2,
        (X,),
        (Y,),
    ),
    "boolean mask": ((1, 0, ""), lambda x: (x + 1)[x > 0] * 2, (X,), (Y,)),
    "boolean list": ((1, 0, ""), lambda x: (x + 1)[[True, False, True]] * 2, (X,), (Y,)),
    "unique": ((1, 0, ""), lambda x: torch.unique((x * 2).int() // 3) * 2, (X,), (Y,)),
    "unique with counts": (
        (1, 0, ""),
        lambda x: (x * 2).int().unique(return_counts=True),
        (X,),
        (Y,),
    ),
    "where with one argument": ((1, 0, ""), lambda x: torch.where(x > 0), (X,), (Y,)),
    "argwhere": ((1, 0, ""), lambda x: torch.argwhere(x > 0) + 1, (X,), (Y,)),
    "repeat_interleave": (
        (1, 0, ""),
        lambda x, n: (x + 1).repeat_interleave(n, dim=0) * 2,
        (X, torch.tensor([1, 2, 3])),
        (X, torch.tensor([1, 0, 1])),
    ),
    "bincount": (
        (1, 0, ""),
        lambda x: torch.bincount(x.abs().int().flatten()) * 2,
        (X,),
        (Y,),
    ),
    "masked update": ((1, 0, ""), masked_update, (X,), (Y,)),
    "masked store": ((1, 0, ""), masked_store, (X,), (Y,)),
    "masked_fill_": ((1, 0, ""), lambda x: x.clone().masked_fill_(x > 0, 1), (X,), (Y,)),
    "where": ((1, 0, ""), lambda x: torch.where(x > 0, x, -x), (X,), (Y,)),
    "stack of numbers": ((1, 0, ""), lambda x: torch.stack([x.sum(), x.mean()]) * 2, (X,), (Y,)),
    "power by a tensor": ((1, 0, ""), lambda x, n: x.abs() ** n, (X, N), (X, M)),
    "gather by indices": ((1, 0, ""), lambda x: x.gather(1, x.argsort(1)), (X,), (Y,)),
    "repeat_interleave by a number": (
        (1, 0, ""),
        lambda x: x.repeat_interleave(2, dim=0) * 2,
        (X,),
        (Y,),
    ),
    "rows": ((1, 0, ""), lambda x: [row * 2 for row in x], (X,), (Y,)),
    "rows unpacked": ((1, 0, ""), lambda x: (lambda a, b, c: a + b * c)(*x), (X,), (Y,)),
    "sum() of rows": ((1, 0, ""), lambda x: sum(x) * 2, (X,), (Y,)),
    "length": ((1, 0, ""), lambda x: x * len(x), (X,), (Y,)),
    "tensors as keys": ((1, 0, ""), lambda x: len({x, x * 1, x}), (X,), (Y,)),
    "tensor of a shape": ((1, 0, ""), lambda x: torch.tensor(x.shape) * 2, (X,), (Y,)),
    "one_hot": ((1, 0, ""), lambda n: F.one_hot(n.view(1), 5) * 2, (N,), (M,)),
    "count_nonzero": ((1, 0, ""), lambda x: torch.count_nonzero(x > 0) * 2, (X,), (Y,)),
    "cartesian_prod, meshgrid": (
        (1, 0, ""),
        lambda x: (torch.cartesian_prod(x[0], x[1]), torch.meshgrid(x[0], x[1], indexing="ij")),
        (X,),
        (Y,),
    ),
    "median, kthvalue": ((1, 0, ""), lambda x: (x.median(dim=1), x.kthvalue(2)), (X,), (Y,)),
}
_COMBINATIONS = lambda x: torch.combinations(x[0]) * 2, (X,), (Y,)
if RELEASE >= (2, 14):
    CAPTURED["combinations"] = ((1, 0, ""), *_COMBINATIONS)
else:
    SHAPES["combinations"] = ((2, 1, "data_dependent_shape"), *_COMBINATIONS)
CASES = {"value": VALUES, "branch": BRANCHES, "shape": SHAPES, "captured": CAPTURED}


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, table in CASES.items() for n in table])
def test_data_dependence(group, name):
    (graphs, breaks, kinds), function, *calls = CASES[group][name]
    same(
        function,
        *calls,
        graphs=graphs,
        breaks=breaks,
        kinds=tuple(kinds.split()) if breaks is not None else None,
    )
    assert kinds or group == "captured"


def test_quantile():
    """Before torch 2.12 its check of q reads a tensor, also where q is a number: a break there."""
    kinds = ("data_dependent_value",) if RELEASE < (2, 12) else ()
    same(lambda x: x.quantile(0.5, dim=0) * 2, (X,), (Y,), kinds=kinds)
