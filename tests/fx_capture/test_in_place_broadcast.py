"""In-place operators with an operand that is larger than their tensor: eager raises, fakes of many
of them do not."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tracer_core
from tracer_core.fx_capture.in_place_results import misfit
from tracer_core.fx_capture.kernel_checks import unchecked

METHODS = (
    "arctan2_ atan2_ bitwise_and_ bitwise_left_shift_ bitwise_or_ bitwise_right_shift_ bitwise_xor_"
    " clamp_ clamp_max_ clamp_min_ clip_ copysign_ eq_ floor_divide_ fmod_ gcd_ ge_ greater_"
    " greater_equal_ gt_ heaviside_ hypot_ igamma_ igammac_ lcm_ le_ less_ less_equal_ lt_ ne_"
    " nextafter_ not_equal_ pow_ remainder_ xlogy_ bernoulli_"
).split()
OPERATORS = "and floordiv lshift mod or pow rshift xor add mul".split()
CALLS = {
    **{name: getattr(torch.Tensor, name) for name in METHODS},
    **{f"i{name}": getattr(operator, f"__i{name}__") for name in OPERATORS},
    **{f"__i{name}__": getattr(torch.Tensor, f"__i{name}__") for name in OPERATORS},
}
#: Sizes of the tensor and of the operand.
SIZES = [((3, 1), (3, 4)), ((4,), (3, 4)), ((1,), (4,)), ((), (1,)), ((3, 4), (1, 4)), ((4,), (4,))]


DTYPES = [torch.float32, torch.int64, torch.bool]


def operands(sizes, dtype):
    return [torch.ones(size, dtype=dtype) for size in sizes]


def raises(function, *args):
    try:
        function(*args)
    except (RuntimeError, TypeError):
        return True
    return False


@pytest.mark.parametrize("name", CALLS)
def test_a_capture_refuses_what_eager_refuses(name):
    for dtype in DTYPES:
        if raises(CALLS[name], *operands(((4,), (4,)), dtype)):
            continue  # no kernel of the dtype
        for sizes in SIZES:
            fails = raises(CALLS[name], *operands(sizes, dtype))
            with FakeTensorMode() as mode:
                fakes = tuple(operands(sizes, dtype))
                reason = misfit(CALLS[name], fakes, {}, lambda mode=mode: mode)
                assert fails or reason is None, (dtype, sizes)
                known = reason or unchecked(CALLS[name], fakes, {}, lambda mode=mode: mode)
                assert known or raises(CALLS[name], *fakes) or not fails, (dtype, sizes)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["atan2_", "bernoulli_", "ior", "__ixor__"])
def test_a_larger_operand(name, dynamic):
    """The tensor keeps its values, whatever the sizes of the operand are in later calls."""

    def program(value, operand):
        CALLS[name](value, operand)
        return value + value

    compiled = tracer_core.compile(program, backend="aten_eager", dynamic=dynamic)
    dtype = torch.bool if "i" in name[:3] else torch.float32
    for sizes in (((4,), (4,)), ((1, 4), (3, 4)), ((3, 4), (3, 4)), ((3, 4), (5, 1, 1))):
        value, operand = operands(sizes, dtype)
        again = value.clone()
        if raises(program, again, operand):
            assert raises(compiled, value, operand)
        else:
            assert torch.equal(compiled(value, operand), again + again)
        assert torch.equal(value, again)
