"""Which ops Triton's kernels hold, what stays with ATen, and what is refused by name."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch

pytest.importorskip("triton")

import tracer_core
from inductor_backend.codegen.common.op_table import KNOWN_OPS
from inductor_backend.ir.ops import OPS
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import compiled

#: Ops without a Triton form: operators that need them run as ATen has them.
#: (libdevice's Bessel functions of large numbers are finite or infinite where eager's are NaN.)
ATEN_ONLY = {"digamma", "gcd", "lcm", "i0", "i0e", "i1", "i1e"}


def test_every_op_has_a_form_or_is_known_to_have_none():
    assert set(OPS) - KNOWN_OPS == ATEN_ONLY


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
@pytest.mark.parametrize(
    "name", ["digamma", "gcd", "lcm", "i0", "special.i0e", "special.i1", "special.i1e"]
)
def test_an_operator_that_needs_an_op_without_a_form_stays_with_aten(name):
    operator = attrgetter(name)(torch)
    x = torch.arange(1, 21) if name in ("gcd", "lcm") else torch.rand(20) + 1
    others = (6,) if name in ("gcd", "lcm") else ()

    def program(x, *others):
        return operator(x * 2, *(torch.full_like(x, n) for n in others)) + 1

    with interpreted():
        result = compiled(lambda x: program(x, *others), x)
    assert result.compilation.runner.artifact.fallbacks == (
        f"aten.{name.replace('.', '_')}.default",
    )
    torch.testing.assert_close(result(x)[0], program(x, *others))


def test_modes():
    x = torch.randn(5)
    fast = tracer_core.compile(lambda x: x * 2, mode="reduce-overhead")
    torch.testing.assert_close(fast(x), x * 2)  # on the CPU nothing is recorded
