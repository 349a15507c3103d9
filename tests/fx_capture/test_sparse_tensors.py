"""Sparse tensors made in a compiled function: how many elements they have depends on data."""

from __future__ import annotations

import pytest
import torch

import tracer_core

INDICES = torch.tensor([[0, 1, 0], [2, 0, 2]])
DENSE = torch.randn(3, 2)


def coo(values):
    return torch.sparse_coo_tensor(INDICES, values, (4, 3), check_invariants=True)


PROGRAMS = {
    "number": lambda v: torch.diag(v).to_sparse()._nnz(),
    "number of values": lambda v: torch.diag(v).to_sparse().values().shape[0],
    "number of indices": lambda v: v * torch.diag(v).to_sparse().indices().shape[1],
    "values": lambda v: (torch.diag(v).to_sparse().values(), v * 2),
    "sum of values": lambda v: torch.diag(v).to_sparse().values().sum(),
    "coalesced": lambda v: coo(v).coalesce().values(),
    "coalesced number": lambda v: v * coo(v).coalesce()._nnz(),
    "is coalesced": lambda v: v * coo(v).is_coalesced(),
    "matmul": lambda v: coo(v) @ DENSE,
    "sum of two": lambda v: (coo(v) + coo(v)).to_dense(),
    "returned": lambda v: coo(v).to_dense() if v.sum() > 99 else coo(v),
    "rows": lambda v: torch.diag(v).to_sparse_csr().crow_indices(),
    "columns": lambda v: v.sum() + torch.diag(v).to_sparse_csr().col_indices().shape[0],
}


def described(value):
    if isinstance(value, tuple):
        return [described(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    dense = value.detach().to_dense()
    return dense.tolist(), value.dtype, value.layout, value.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sparse_tensor_has_as_many_elements_as_its_data(name, requires_grad, backend):
    f = PROGRAMS[name]
    fast = tracer_core.compile(f, backend=backend)
    for values in ([1.0, 0.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]):
        gradients = []
        for function in (f, fast):
            v = torch.tensor(values, requires_grad=requires_grad)
            result = function(v)
            gradients.append(described(result))
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.to_dense().square().sum().backward()
                gradients.append(v.grad.tolist())
        half = len(gradients) // 2
        assert gradients[:half] == gradients[half:]
