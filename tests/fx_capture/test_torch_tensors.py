"""Tensors of every kind and what programs do with them: constructors, views, indices, dtypes,
subclasses, sparse, nested and quantized ones, modes. Right, and captured where that can be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.support.eager_reference import same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
C = torch.complex(X, Y)
G = torch.randn(3, 4, requires_grad=True)


def views_written(x):
    y = x.clone()
    y[0].mul_(2)
    y.view(-1)[1:3] = 7
    y.T[0] += 1
    y[:, 1].zero_()
    return y


def input_views_written(x):
    x[0].mul_(2)
    x.view(-1)[1:3] = 7
    x.T[0] += 1
    return x, x[1]


def diagonals_filled(x):
    similarity = x @ x.T
    same_object = similarity.fill_diagonal_(float("-inf")) is similarity
    others = torch.ones(3, 3, dtype=torch.bool).fill_diagonal_(False)
    return similarity.softmax(1), others, same_object, x.fill_diagonal_(fill_value=2)


def items_stored(x):
    y = x.clone()
    y[0, 1] = 5
    y[1:] = x[:2]
    y[..., 0] = 0
    y[[0, 1], [1, 2]] = 9
    y[torch.tensor([0])] = x[1]
    y[None, 0] = 1
    return y


def in_place_operators(x):
    y = x.clone()
    y += 1
    y *= x
    y -= 2
    y /= 3
    y **= 2
    y //= 0.1
    z = x > 0
    z |= x < -1
    z &= x < 1
    z ^= x > 0
    return y, z


def view_of_a_view(x):
    y = x.clone()
    v = y.view(4, 3)
    v[1:].mul_(3)
    return y, v


def detached_write(x):
    y = x * 2
    y.detach().add_(1)
    return y


def data_written(x):
    y = x * 1
    y.data.add_(1)
    return y


def data_set(x):
    y = x.clone()
    y.data = y.data * 2
    return y + 1


def attribute_on_intermediate(x):
    y = x * 2
    y.note = 3
    return y, y.note


def inplace_needed_by_autograd(x):
    y = x * 2
    z = y.exp()
    y.add_(1)
    return z.sum() + y.sum()


def parameter_filled(x):
    p = torch.zeros(4)
    with torch.no_grad():
        p.copy_(x[0])
        p.fill_(2)
    return p * x


def same_object_twice(x):
    y = x * 2
    return y, y, [y], {"a": y}, y[0], y.T


PLAIN = {
    "tensor of a list": ((1, 0, ""), lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0]) * x, (X,), (Y,)),
    "tensor with dtype": (
        (1, 0, ""),
        lambda x: torch.tensor([[1, 2, 3], [3, 4, 5]], dtype=torch.float32) @ x,
        (X,),
        (Y,),
    ),
    "tensor of an argument": ((2, 0, ""), lambda x, k: x * torch.tensor(k), (X, 2), (X, 3), (X, 2)),
    "as_tensor": (
        (1, 0, ""),
        lambda x: torch.as_tensor([1, 2, 3, 4]) * x + torch.as_tensor(x),
        (X,),
        (Y,),
    ),
    "new_*": (
        (1, 0, ""),
        lambda x: (
            x.new_tensor([1.0, 2.0]),
            x.new_zeros(2),
            x.new_ones(2, 3),
            x.new_full((2,), 3.0),
        ),
        (X,),
        (Y,),
    ),
    "*_like": (
        (1, 0, ""),
        lambda x: (torch.zeros_like(x), torch.ones_like(x, dtype=torch.int), torch.full_like(x, 2)),
        (X,),
        (Y,),
    ),
    "arange, linspace, logspace": (
        (1, 0, ""),
        lambda x: torch.arange(0, 1, 0.25) * x + torch.linspace(0, 1, 4) + torch.logspace(0, 1, 4),
        (X,),
        (Y,),
    ),
    "eye, tril, triu": (
        (1, 0, ""),
        lambda x: torch.eye(3) @ x + torch.tril(torch.ones(3, 3)) @ x + x.triu(1),
        (X,),
        (Y,),
    ),
    "random": (
        (1, 0, ""),
        lambda x: (
            torch.rand(2),
            torch.randn_like(x),
            torch.randint(0, 5, (2,)),
            torch.randperm(4),
            torch.bernoulli(x.sigmoid()),
            torch.multinomial(x.softmax(-1), 2),
            torch.normal(x, 1.0),
        ),
        (X,),
        (Y,),
    ),
    "random in place": (
        (1, 0, ""),
        lambda x: (
            x.clone().uniform_(),
            x.clone().normal_(),
            x.clone().bernoulli_(0.5),
            x.clone().exponential_(),
        ),
        (X,),
        (Y,),
    ),
    "size": (
        (1, 0, ""),
        lambda x: (
            x * 1,
            torch.Size([1, 2]) + x.shape,
            x.shape.numel(),
            x.size(-1),
            x.ndim,
            x.nelement(),
            x.dim(),
        ),
        (X,),
        (Y,),
    ),
    "finfo": (
        (1, 0, ""),
        lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min) + torch.iinfo(torch.int32).max,
        (X,),
        (Y,),
    ),
    "dtypes": (
        (1, 0, ""),
        lambda x: (
            x.dtype.is_floating_point,
            x.dtype.itemsize,
            x.to(torch.float64).dtype,
            x.element_size(),
            str(x.dtype),
            torch.promote_types(x.dtype, torch.int64),
            x.device.type,
            str(x.device),
            x.dtype in (torch.float16, torch.float32),
        ),
        (X,),
    ),
    "dtypes named by Python's classes": (
        (2, 0, ""),
        lambda x: (
            torch.tensor([-1], dtype=int) + x.to(int),
            x.sum(dtype=float),
            x.to(bool),
            torch.ones(2, dtype=complex),
        ),
        (X,),
        (G,),
    ),
    "to": (
        (1, 0, ""),
        lambda x: (
            x.to(torch.tensor(1.0, dtype=torch.float64)),
            x.type_as(torch.tensor(1)),
            x.half().float(),
            x.to("cpu", torch.float16),
            x.type(torch.float64),
            x.to(x),
            x.cpu(),
            x.to(device="cpu", dtype=torch.float64, copy=True),
        ),
        (X,),
        (Y,),
    ),
    "diagonals filled": ((1, 0, ""), diagonals_filled, (X,), (Y,)),
    "views written": ((1, 0, ""), views_written, (X,), (Y,)),
    "views of an input written": ((1, 0, ""), input_views_written, (X,), (Y,)),
    "view of a view": ((1, 0, ""), view_of_a_view, (X,), (Y,)),
    "detached write": ((1, 0, ""), detached_write, (X,), (Y,)),
    ".data written": ((1, 0, ""), data_written, (X,), (Y,)),
    ".data read": ((2, 0, ""), lambda x: x.data * 2, (G,), (X,)),
    "items stored": ((1, 0, ""), items_stored, (X,), (Y,)),
    "in-place operators": ((1, 0, ""), in_place_operators, (X,), (Y,)),
    "parameter filled": ((1, 0, ""), parameter_filled, (X,), (Y,)),
    "one object several times": ((1, 0, ""), same_object_twice, (X,), (Y,)),
    "input views returned": ((1, 0, ""), lambda x: (x[0], x.T, x.view(-1), x), (X,), (Y,)),
    "indices": (
        (1, 0, ""),
        lambda x: (
            x[..., 0],
            x[:, None],
            x[::2],
            x[[0, 2]],
            x[0, ..., 1:],
            x[torch.tensor([0, 1])],
            x[-1],
            x[:, -2:],
            x[1, 2],
        ),
        (X,),
        (Y,),
    ),
    "operators": (
        (1, 0, ""),
        lambda x: (
            2**x,
            2 / x,
            2 - x,
            1 + x,
            5 // x,
            5 % x,
            x @ x.T,
            ~(x > 0),
            x < 1,
            1 > x,
            -x,
            +x,
            x // 2,
            x % 2,
            abs(x),
        ),
        (X,),
        (Y,),
    ),
    "einsum": (
        (1, 0, ""),
        lambda x: (
            torch.einsum("ij,kj->ik", x, x),
            torch.einsum("ij->j", x),
            torch.einsum(x, [0, 1], x, [2, 1], [0, 2]),
        ),
        (X,),
        (Y,),
    ),
    "ATen called": (
        (1, 0, ""),
        lambda x: (
            torch.ops.aten.add(x, 1)
            + torch.ops.aten.mul.Tensor(x, x)
            + torch.ops.aten.sum.dim_IntList(x, [0])
        ),
        (X,),
        (Y,),
    ),
    "unbind, split, chunk": (
        (1, 0, ""),
        lambda x: (
            [a + b for a, b in zip(x.unbind(0), x.split(1), strict=True)] + list(x.chunk(2, dim=1))
        ),
        (X,),
        (Y,),
    ),
    "shape unpacked": (
        (1, 0, ""),
        lambda x: (lambda b, c: x.view(b * c).view(c, -1))(*x.shape),
        (X,),
        (Y,),
    ),
    "T, mT, H, mH, real": ((1, 0, ""), lambda x: (x.T, x.mT, x.H, x.mH, x.real), (X,), (Y,)),
    "complex": (
        (1, 0, ""),
        lambda x: (torch.view_as_complex(x.view(3, 2, 2)) * 1j).abs(),
        (X,),
        (Y,),
    ),
    "complex input": (
        (1, 0, ""),
        lambda x: (x.real, x.imag, x.conj(), x.H, x.abs(), x.angle(), torch.view_as_real(x)),
        (C,),
        (C * 2,),
    ),
    "contiguity": (
        (1, 0, ""),
        lambda x: (
            x * 1,
            x.T.is_contiguous(),
            x.stride(),
            x.T.stride(0),
            x[None, None]
            .to(memory_format=torch.channels_last)
            .is_contiguous(memory_format=torch.channels_last),
        ),
        (X,),
        (Y,),
    ),
    "as_strided": (
        (1, 0, ""),
        lambda x: x.as_strided((2, 2), (1, 2)) + torch.as_strided(x, (2, 2), (1, 1)),
        (X,),
        (Y,),
    ),
    "broadcast": (
        (1, 0, ""),
        lambda x: (
            torch.broadcast_tensors(x, x[0])[1]
            + torch.broadcast_to(x[0], (3, 4))
            + x[0].expand(3, -1)
        ),
        (X,),
        (Y,),
    ),
    "out=": (
        (1, 0, ""),
        lambda x, o: (torch.add(x, 1, out=o), torch.mul(x, 2, out=torch.empty(3, 4))),
        (X, torch.empty(3, 4)),
        (Y, torch.empty(3, 4)),
    ),
    "sorting": (
        (1, 0, ""),
        lambda x: (
            x.sort(dim=1).values,
            x.topk(2).indices,
            x.max(1),
            torch.kthvalue(x, 2),
            x.argsort(),
            x.cummax(0),
        ),
        (X,),
        (Y,),
    ),
    "scatter": (
        (1, 0, ""),
        lambda x: x.scatter_add(0, torch.zeros(1, 4, dtype=torch.long), x).index_add(
            0, torch.tensor([0]), x[:1]
        ),
        (X,),
        (Y,),
    ),
    "linear algebra": (
        (1, 0, ""),
        lambda x: (
            torch.linalg.norm(x),
            torch.linalg.inv(x @ x.T + torch.eye(3)),
            torch.linalg.svd(x)[1],
            torch.linalg.eigh(x @ x.T)[0],
        ),
        (X,),
        (Y,),
    ),
    "fft": (
        (1, 0, ""),
        lambda x: (
            torch.fft.irfft(torch.fft.rfft(x), n=4)
            + torch.stft(x.flatten(), 4, return_complex=True, window=torch.ones(4)).abs().sum()
        ),
        (X,),
        (Y,),
    ),
    "type questions": (
        (1, 0, ""),
        lambda x: (
            isinstance(x * 2, torch.Tensor),
            type(x * 2) is torch.Tensor,
            type(x * 2).__name__,
            isinstance(x * 2, nn.Parameter),
            torch.is_tensor(x),
            torch.is_floating_point(x),
            torch.is_complex(x),
            x.is_cuda,
        ),
        (X,),
        (Y,),
    ),
    "pytree": (
        (1, 0, ""),
        lambda x: torch.utils._pytree.tree_map(lambda t: t * 2, {"a": x, "b": [x, 1]}),
        (X,),
        (Y,),
    ),
    "deepcopy": ((1, 0, ""), lambda x: copy.deepcopy(x) * 2, (X,), (Y,)),
    "meta": (
        (1, 0, ""),
        lambda x: ((x.to("meta") * 2).shape, torch.empty(3, device="meta").device, x * 2),
        (X,),
        (Y,),
    ),
    "meta input": ((1, 0, ""), lambda x: (x * 2).shape, (X.to("meta"),), (Y.to("meta"),)),
    "sparse inside": ((1, 0, ""), lambda x: (x.relu().to_sparse() @ x.T).sum(), (X,), (Y,)),
    "fake quantization": (
        (1, 0, ""),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        (X,),
        (Y,),
    ),
    "attribute of an intermediate": ((1, 0, ""), attribute_on_intermediate, (X,), (Y,)),
    "no grad_fn": ((1, 0, ""), lambda x: ((x * 2).grad_fn is None, x * 2), (X,), (Y,)),
    "is_leaf": ((1, 0, ""), lambda x: (x.is_leaf, x * 2), (X,), (Y,)),
    "autograd of in-place": ((1, 0, ""), inplace_needed_by_autograd, (G,), (G,)),
}
EXPLAINED = {
    "compressed sparse": (
        (3, 2, "tensor_subclass"),
        lambda x: (x.relu().to_sparse_csr() @ x.T) * 2,
        (X,),
        (Y,),
    ),
    "negative step": ((1, 1, "operator_failed"), lambda x: (x * 2)[::-1], (X,), (Y,)),
    "index out of range": ((1, 1, "operator_failed"), lambda x: (x * 2)[5], (X,), (Y,)),
    "shapes that do not fit": ((1, 1, "operator_failed"), lambda x: (x * 2) @ x, (X,), (Y,)),
    "dimension out of range": ((1, 1, "operator_failed"), lambda x: (x * 2).sum(7), (X,), (Y,)),
    "view that does not fit": ((1, 1, "operator_failed"), lambda x: (x * 2).view(5), (X,), (Y,)),
    "leaf changed in place": ((0, 1, "operator_failed"), lambda x: x.add_(1), (G,), (G,)),
    "grad_fn": (
        (2, 1, "autograd_in_graph"),
        lambda x: ((x * 2).grad_fn is None, x * 2),
        (G,),
        (G,),
    ),
    "_version": ((1, 1, "autograd_in_graph"), lambda x: (x._version, x * 2), (X,), (Y,)),
    ".data set": ((2, 1, "tensor_metadata_mutation"), data_set, (X,), (Y,)),
    "requires_grad_ of an input": (
        (1, 1, "tensor_metadata_mutation"),
        lambda x: x.requires_grad_() * 2,
        (X,),
        (Y,),
    ),
    "resize_": (
        (2, 1, "tensor_metadata_mutation"),
        lambda x: x.clone().resize_(2, 6) * 2,
        (X,),
        (Y,),
    ),
    "t_ of an input": ((1, 1, "tensor_metadata_mutation"), lambda x: x.t_() * 2, (X,), (Y,)),
    "storage": (
        (1, 2, "data_dependent_value unknown_native"),
        lambda x: (x.untyped_storage().nbytes(), x * 2),
        (X,),
        (Y,),
    ),
    "quantized": (
        (2, 3, "tensor_subclass"),
        lambda x: torch.quantize_per_tensor(x * 2, 0.1, 0, torch.quint8).dequantize() * 2,
        (X,),
        (Y,),
    ),
    "quantized input": (
        (1, 2, "tensor_subclass"),
        lambda q: q.dequantize() * 2,
        (torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),),
    ),
    "sparse input": (
        (2, 1, "tensor_subclass"),
        lambda s, x: torch.sparse.mm(s, x.T) * 2,
        (torch.eye(4).to_sparse(), X),
        (torch.eye(4).to_sparse(), Y),
    ),
    "nested": (
        (2, 3, "real_tensor_in_trace tensor_subclass"),
        lambda x: torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0) * 2,
        (X,),
        (Y,),
    ),
    "float index": ((1, 1, "operator_failed"), lambda x: (x * 2)[1.5], (X,), (Y,)),
}
CASES = {"captured": PLAIN, "explained": EXPLAINED}


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, table in CASES.items() for n in table])
@pytest.mark.filterwarnings("ignore")
def test_tensors(group, name):
    (graphs, breaks, kinds), function, *calls = CASES[group][name]
    same(function, *calls, graphs=graphs, breaks=breaks, kinds=tuple(kinds.split()))
    assert bool(kinds) == (group == "explained")
