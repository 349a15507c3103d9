"""NumPy's own functions of arrays in the trace (sorting, quantiles, interpolation): nodes that call
NumPy, with its values also for ties, NaN and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.eager_reference import same

BACKENDS = ["eager", "inductor"]
TIES = torch.tensor([3.0, 1.0, 3.0, -0.0, 0.0, 1.0, 2.0, 3.0]).repeat(6)
WILD = torch.tensor([3.0, float("nan"), float("inf"), -float("inf"), 0.0, 1.0, 2.0, 3.0]).repeat(6)
CALLS = [(torch.randn(48),), (TIES,), (WILD,), (torch.arange(48.0),)]

FUNCTIONS = {
    "argsort": lambda a: np.argsort(a),
    "argsort, stable and reversed": lambda a: np.argsort(-a, kind="stable")[::1],
    "argsort by columns": lambda a: np.argsort(a.reshape(6, 8), axis=0),
    "its method": lambda a: (a * 2).argsort(),
    "percentile": lambda a: np.percentile(a, 30),
    "percentiles": lambda a: np.percentile(a.reshape(6, 8), [10, 50.0, 99], axis=1),
    "quantile": lambda a: np.quantile(a, 0.25, method="lower"),
    "median": lambda a: np.median(a.reshape(6, 8), axis=0),
    "nanmedian": lambda a: np.nanmedian(a),
    "interp": lambda a: np.interp(a, [0.0, 1.0, 2.0], [0.0, 5.0, -1.0]),
    "interp over an array": lambda a: np.interp(np.linspace(0, 1, 5), np.linspace(0, 1, 48), a),
    "searchsorted": lambda a: np.searchsorted([0.0, 1.0, 2.0], a, side="right"),
    "its other method": lambda a: np.sort(a).searchsorted(a),
    "digitize": lambda a: np.digitize(a, np.array([0.0, 1.0, 2.0])),
    "partition": lambda a: np.partition(a, 4)[:5].sum(),
    "lexsort": lambda a: np.lexsort((a, -a)),
    "convolve": lambda a: np.convolve(a, [0.25, 0.5, 0.25], mode="same"),
    "trapezoid": lambda a: np.trapezoid(a, dx=0.5),
    "isin": lambda a: np.isin(a, [1.0, 3.0]),
    "integers": lambda a: np.argsort((a > 0).astype(np.int64)),
    "double precision": lambda a: np.percentile(a.astype(np.float64), 12.5),
}


@pytest.mark.sweep(keep=20)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    same(lambda x: torch.as_tensor(function(x.numpy() + 0)), *CALLS, graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_computed_with_the_result(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        array = x.numpy()
        order = np.argsort(array[:, 0])
        low = np.percentile(array, 30)
        return torch.from_numpy(array[order] - low), torch.as_tensor(low), torch.tensor(low * 2)

    same(program, *[(torch.randn(6, 4),) for _ in range(3)], graphs=1, backend=backend)
    same(program, *[(torch.randn(n, 4).double(),) for n in (3, 5, 7)], backend=backend)


def test_numbers_of_numpy_become_tensors_of_their_type() -> None:
    def program(x: torch.Tensor) -> Any:
        value = np.median(x.numpy())
        return torch.tensor(value), torch.as_tensor(value), torch.asarray(value)

    for dtype in (torch.float32, torch.float64, torch.float16):
        same(program, (torch.randn(5).to(dtype),), (torch.randn(5).to(dtype),), graphs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_are_numpys(backend: str) -> None:
    def program(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> Any:
        seen.append(1)
        edges = np.digitize(x.numpy(), at.numpy())
        seen.append(2)
        return edges + np.percentile(x.numpy(), at.numpy()[-1])

    x, good = torch.rand(5), torch.tensor([0.0, 1.0, 2.0])
    bad = torch.tensor([0.0, 2.0, 1.0])
    same(program, (x, good, []), (x, bad, []), (x, good * 99, []), (x, good, []), backend=backend)


def test_what_depends_on_values_breaks_the_graph() -> None:
    for function in (np.unique, np.flatnonzero, lambda a: np.histogram(a)[0]):
        same(lambda x, f=function: f(x.numpy() * 2), (TIES,), (TIES + 1,), breaks=None)  # type: ignore[misc]
