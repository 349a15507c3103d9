"""Our native kernels on processors with narrower vectors than this one's: their units are built for
4, 8 and 16 floats a vector.

LANES tells a unit how wide its vectors are. A machine runs its own width and all below.
"""

import pytest

from inductor_backend.kernels import native
from tests.support import torch_server

pytestmark = pytest.mark.full

PROGRAM = """
import sys
import torch
import tracer_core
from torch import nn
from inductor_backend.kernels import native

width = int(sys.argv[1])
native.lanes = lambda: width  # before any module takes the name
torch.manual_seed(0)


class Moved(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


MODELS = {
    "products of 64 columns": (
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 7)), (513, 16),
    ),
    "few rows": (nn.Sequential(nn.Linear(33, 70), nn.Tanh(), nn.Linear(70, 64)), (5, 33)),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3), nn.ReLU(), nn.Conv2d(32, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 72, 1),
            nn.ReLU(), nn.Conv2d(72, 72, 3, padding=1, groups=72), nn.ReLU(), nn.Conv2d(72, 64, 3, 2, 1, groups=2),
        ),
        (2, 3, 40, 44),
    ),
    "recurrent": (nn.LSTM(20, 24, batch_first=True), (3, 5, 20)),
}
for name, (model, shape) in MODELS.items():
    x = torch.randn(shape)
    found = []
    for call, inputs in ((model, x), (tracer_core.compile(model), x), (None, x.double())):
        model.zero_grad()
        call = call or model.double()
        leaf = inputs.clone().requires_grad_()
        out = call(leaf)
        out = out[0] if isinstance(out, tuple) else out
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
        (out * weight).sum().backward()
        found.append([out.detach(), leaf.grad, *(p.grad.clone() for p in model.parameters())])
        if call is not model:  # inference takes other kernels
            with torch.no_grad():
                again = call(inputs)
                found[-1][0] = again[0] if isinstance(again, tuple) else again
    for eager, ours, truth in zip(*found, strict=True):
        size = float(truth.norm())
        error, theirs = (float((value.double() - truth).norm()) / size for value in (ours, eager))
        assert error <= max(4 * theirs, 1e-5), f"{name}: {error:.1e}, eager {theirs:.1e}, shape {tuple(truth.shape)}"
print("right")
"""


@pytest.mark.parametrize("lanes", [n for n in (4, 8, 16) if n <= native.lanes()])
def test_kernels_are_right_with_vectors_of_any_width(lanes: int, tmp_path):
    program = tmp_path / "widths.py"
    program.write_text(PROGRAM)
    done = torch_server.run([str(program), str(lanes)], timeout=280)
    assert done.stdout.strip() == "right", done.stdout + done.stderr[-3000:]
