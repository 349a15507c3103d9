"""Copies, and memory made like a tensor's, have eager's strides, also in dimensions of one element."""

import pytest
import torch

import tracer_core

TENSORS = {
    "row_turned": lambda n: torch.randn(1, n).t(),
    "column_turned": lambda n: torch.randn(n, 1).t(),
    "moved": lambda n: torch.randn(4, 1, n).transpose(0, 2),
    "permuted": lambda n: torch.randn(2, 1, 1, n).permute(3, 1, 0, 2),
    "inner_ones": lambda n: torch.randn(1, 1, n).permute(2, 0, 1),
    "expanded": lambda n: torch.randn(1, n).expand(4, n),
    "expanded_column": lambda n: torch.randn(n, 1).expand(n, 4),
    "channels_last_of_one": lambda n: torch.randn(2, n, 1, 1).to(memory_format=torch.channels_last),
    "image_of_one_channel": lambda n: torch.randn(2, 1, n, 4).to(memory_format=torch.channels_last),
    "odd_stride_of_a_row": lambda n: torch.zeros(n).as_strided((1, n), (n + 4, 1)),
    "odd_stride_of_a_column": lambda n: torch.zeros(n).as_strided((n, 1), (1, n + 4)),
    "column_of_a_table": lambda n: torch.randn(2 * n, 4)[::2, :1],
    "one_element": lambda n: torch.randn(n).as_strided((1, 1, 1), (3, 9, 5)),
    "empty": lambda n: torch.randn(0, 1, n).transpose(0, 2),
}
CHANNELS_LAST = {"memory_format": torch.channels_last}
FUNCTIONS = {
    "zeros_like": torch.zeros_like,
    "ones_like_of_bools": lambda t: torch.ones_like(t, dtype=torch.bool),
    "full_like": lambda t: torch.full_like(t, 3),
    "empty_like": lambda t: torch.empty_like(t).fill_(2),
    "empty_like_contiguous": lambda t: torch.empty_like(
        t, memory_format=torch.contiguous_format
    ).zero_(),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda t: torch.randint_like(t, 5),
    "randint_like_between": lambda t: torch.randint_like(t, 2, 5),
    "clone": torch.clone,
    "clone_contiguous": lambda t: t.clone(memory_format=torch.contiguous_format),
    "to": lambda t: t.to(torch.float64),
    "to_copy": lambda t: t.to(torch.float32, copy=True),
    "contiguous": lambda t: t.contiguous(),
    "flip": lambda t: t.flip(0),
    "like_a_view": lambda t: torch.zeros_like(t.unsqueeze(-1)),
    "copy_of_zeros": lambda t: torch.zeros_like(t).clone(),
    "images": lambda t: torch.zeros_like(t, **CHANNELS_LAST) if t.dim() == 4 else t + 0,
    "copied_images": lambda t: t.clone(**CHANNELS_LAST) if t.dim() == 4 else t + 0,
}


@pytest.mark.sweep(keep=20)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides(name, backend, dynamic):
    function = FUNCTIONS[name]
    for kind, make in TENSORS.items():
        if name in ("images", "copied_images") and make(5).dim() != 4:
            continue
        compiled = tracer_core.compile(function, backend=backend, dynamic=dynamic)
        for n in (5, 7, 5):
            inputs = make(n)
            torch.manual_seed(0)
            wanted = function(inputs)
            torch.manual_seed(0)
            actual = compiled(inputs)
            torch.testing.assert_close(
                actual, wanted, msg=lambda text, kind=kind: f"{kind}: {text}"
            )
            assert (kind, actual.stride()) == (kind, wanted.stride())
