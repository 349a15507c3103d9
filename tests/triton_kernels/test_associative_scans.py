"""torch's associative_scan as one Triton kernel, run by Triton's interpreter, beside a loop over the
slices; and compiled for sm_90.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

pytest.importorskip("triton")

from torch._higher_order_ops.associative_scan import associative_scan

import tracer_core
from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.triton import associative_scan as codegen
from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.module import specification
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.support.processes import reported_by_triton

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def recurrence(x, y):
    return x[0] * y[0], x[1] * y[0] + y[1]


def clamped(x, y):
    return torch.where(x > y, x, y).clamp(max=1.5)


def complex_product(x, y):
    return {
        "re": x["re"] * y["re"] - x["im"] * y["im"],
        "im": x["re"] * y["im"] + x["im"] * y["re"],
    }


def added(x, y):
    return x + y


def of_sums(x, y):
    """Reads other elements than its own: no kernel."""
    return x + y * (y.softmax(-1) > 2)


def R(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0)).to(dtype)


#: name -> function, inputs, dimension, whether in reverse
SCANS = {
    "recurrence": (recurrence, (R(40, 5).sigmoid(), R(40, 5)), 0, False),
    "one column": (recurrence, (R(33).sigmoid(), R(33)), 0, False),
    "reversed, inner dimension": (clamped, R(3, 21), 1, True),
    "complex numbers": (complex_product, {"re": R(9, 2, 3), "im": R(9, 2, 3)}, 0, False),
    "bfloat16": (recurrence, (R(20, 3, dtype=torch.bfloat16).sigmoid(), R(20, 3, dtype=torch.bfloat16)), 0, False),
    "float64": (added, R(20, 3, dtype=torch.float64), 0, False),
    "integers": (added, torch.arange(60).view(20, 3), 0, False),
    "infinities": (added, torch.tensor([1.0, float("inf"), 2.0, float("nan"), 3.0, 1.0]), 0, False),
}  # fmt: skip


def in_turn(combine, xs, dim, reverse):
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten(xs)
    slices = [leaf.unbind(dim) for leaf in leaves]
    rows = [pytree.tree_unflatten(list(pair), structure) for pair in zip(*slices, strict=True)]
    rows = rows[::-1] if reverse else rows
    actual = [rows[0]]
    for row in rows[1:]:
        actual.append(combine(actual[-1], row))
    actual = actual[::-1] if reverse else actual
    return pytree.tree_map(lambda *leaf: torch.stack(leaf, dim), *actual)


@pytest.fixture
def written(monkeypatch):
    """The kernels that are made."""
    result = []
    monkeypatch.setattr(
        wrapper,
        "associative_kernel",
        lambda *inputs: result.append(codegen.associative_kernel(*inputs)) or result[-1],
    )
    return result


def scanned(combine, xs, dim, reverse):
    def program(xs):
        return associative_scan(combine, xs, dim, reverse=reverse, combine_mode="generic")

    with interpreted(), torch.no_grad():
        return tracer_core.compile(program, backend="inductor", fullgraph=True)(xs)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("elements", [codegen.ELEMENTS, 16], ids=["registers", "blocks"])
@pytest.mark.sweep(keep=8)
def test_a_scan_is_a_kernel(name, elements, written, monkeypatch):
    monkeypatch.setattr(codegen, "ELEMENTS", elements)
    monkeypatch.setattr(codegen, "COLUMNS", 2)
    combine, xs, dim, reverse = SCANS[name]
    got, want = scanned(combine, xs, dim, reverse), in_turn(combine, xs, dim, reverse)
    assert len({kernel.text for kernel in written}) == 1
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if name == "bfloat16" else {}
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)


def test_a_function_of_other_elements_is_a_tree(written):
    x = R(12, 4)
    torch.testing.assert_close(scanned(of_sums, x, 0, False), in_turn(of_sums, x, 0, False))
    assert written == []


def test_with_gradients_a_scan_is_a_tree(written):
    x = R(12, 4).requires_grad_()
    with interpreted():
        fast = tracer_core.compile(
            lambda x: associative_scan(added, x, 0, combine_mode="generic"), backend="inductor"
        )
        (got,) = torch.autograd.grad(fast(x).cos().sum(), x)
    (want,) = torch.autograd.grad(x.cumsum(0).cos().sum(), x)
    torch.testing.assert_close(got, want)
    assert written == []


def test_machine_code(written, tmp_path):
    """The kernel compiles for sm_80 and sm_90; elements are exchanged within warps."""
    scanned(recurrence, (R(300, 5), R(300, 5)), 0, False)
    text = written[0].text.replace(NAME, "recurrence")
    kernel = specification(written[0], "recurrence", text)
    data = json.dumps(dataclasses.asdict(kernel))
    report = reported_by_triton("tests.triton_kernels.offline_kernel", data, cache=tmp_path)
    assert set(report) == {"80", "90"}
    for actual in report.values():
        assert actual["target"] and actual["shuffles"] > 0 and actual["bytes"] > 1000
