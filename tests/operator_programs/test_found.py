"""What the operator programs found, each program as small as it could be: all were wrong once."""

from __future__ import annotations

import copy

import pytest
import torch

import tracer_core
from tests.operator_programs.program import Mode, Program
from tests.operator_programs.run import run
from tests.random_programs.run import Result
from tracer_core.testing import compare

FLOAT, PERMUTED = (
    "filled('float32', 'random', s0, s1)",
    "filled('float32', 'random', s1, s0).permute(1, 0)",
)
TIES = "filled('float32', 'zeros', s0, s1)"
OVERLAPPING = "filled('float32', 'random', s0 + 2).unfold(0, 3, 1)"
EMPTY = "filled('float32', 'random', 0, s1)"

#: name -> inputs and statements; the last one returns.
PROGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    # Integers.
    "uint8_divided_by_255": (("filled('uint8', 'extreme', 9)",), """
        return (torch.div(i0, 255, rounding_mode='trunc'), i0 // 255, i0 % 255, torch.fmod(i0, 255))"""),
    "int64_overflow_of_a_choice": (("filled('bool', 'random', 9)",), """
        t0 = torch.where(i0, i0, 2**62)
        return (t0 + t0,)"""),
    "threshold_of_integers": (("filled('int32', 'extreme', 9)",), """
        return (F.threshold(i0, 0.001, -2.5),)"""),
    # Places of extremes.
    "argmin_beside_another_layout": ((FLOAT,), "return (torch.argmin(i0), torch.isneginf(i0.mT))"),
    "argmax_of_ties_in_permuted_memory": ((PERMUTED,), """
        t0 = (i0 * 0).round()
        return (t0 * 2, torch.argmax(t0))"""),
    # Kernels only move elements of these dtypes.
    **{
        f"{dtype}_in_place": ((f"filled('{dtype}', 'random', 9)",), "return (i0.nan_to_num_(), i0.clone())")
        for dtype in ("uint16", "uint32", "uint64")
    },
    # Weights of zero.
    **{
        f"upsampling_of_infinities_{factor}": (("filled('float32', 'special', 2, 4, 7)",), f"""
        t0 = F.interpolate(i0, scale_factor={factor}, mode='linear')
        return (t0, F.interpolate(i0[None], scale_factor={factor}, mode='bilinear'))""")
        for factor in (2, 3)
    },
    # Signs of zeros.
    "clamp_keeps_the_zero": (("filled('float16', 'special', 40)",), """
        return (torch.rsqrt(i0.clamp(max=-0.0)), 1 / (-i0.abs()).clamp(min=0.0))"""),
    "elu_of_zero_by_an_alpha_that_is_none": (("filled('float32', 'zeros', s0, s1)",), """
        inf, nan = float('inf'), float('nan')
        return (F.elu(i0, nan), F.elu(i0, inf), F.celu(i0, inf), F.celu(i0, -inf), F.elu(-i0, inf))"""),
    # Writes.
    "fill_diagonal_after_an_offset": ((FLOAT,), "return (i0.fill_diagonal_(1),)"),
    "write_through_an_expansion": ((FLOAT,), """
        t0 = i0 / 0
        t1 = t0.expand_as(i0)
        t1.fill_(1)
        return (t0, t1)"""),
    "write_to_rows_that_are_one": (("filled('float32', 'zeros', 1, s1).expand(s0, s1)",), """
        t0 = i0.diagonal()
        t0[[0]] += 1
        return (t0,)"""),
    "write_to_windows": (("filled('int64', 'special', 5).unfold(0, 3, 1)",), """
        t0 = i0[0, ..., None]
        t0.index_fill_(-1, torch.tensor([0]), 1)
        return (t0.clone(),)"""),
    "write_beyond_a_view": (("filled('int8', 'random', 5)[3]",), """
        t0 = i0.as_strided((2,), (1,))
        t0[t0 != 0] = 1
        return (t0,)"""),
    "select_scatter_into_windows": ((OVERLAPPING,), """
        return (i0.select_scatter(i0.select(0, -1), 0, 0),)"""),
    # Norms.
    "norms_of_one_number": (("filled('float32', 'exact', 9, 1)",), """
        t0, t1 = i0 * 1e30, i0 * 1e-40
        t2, t3 = torch.linalg.vector_norm(t0, 3, dim=1), torch.linalg.vector_norm(t1, 0, dim=1)
        return (t0.norm(dim=1), t1.norm(dim=1), t0[0].norm(), F.normalize(t0, dim=1), t2, t3)"""),
    "std_of_numbers_whose_squares_float32_has_not": (("filled('float32', 'exact', 9, 5)",), """
        t0, t1 = i0 * 1e30, i0 * 1e-39
        return (t0.std(), t0.std(1), t0.std(0), t1.std(), torch.std(t1, 1, correction=0), 1 / t1.var())"""),
    "integers_made_of_floats": (("filled('float32', 'random', 9, 40)",), """
        t0 = i0.to(torch.int64)
        return (1 / t0.float(), i0 // t0, i0.double() / i0.to(torch.int32).double())"""),
    # Products that are rounded before they are added, as eager rounds them.
    "difference_of_equal_products": (("filled('float32', 'random', 40)",), """
        t0 = i0 * 1.1
        return ((i0 * i0 - t0 * (i0 / 1.1)) * 0, torch.sqrt(i0 * t0 - t0 * i0), (i0 * t0 - t0 * i0) == 0)"""),
    "log_softmax_of_a_product": (("filled('float32', 'extreme', 3)",), """
        return (torch.log_softmax(torch.kron(i0, i0), 0),)"""),
    "power_whose_oddness_float32_has_not": (("filled('float32', 'exact', 40)",), """
        return (i0 ** 16777217, torch.pow(i0, -2147483649))"""),
    # Memory.
    "msort_of_a_part_that_was_written": (("filled('float64', 'zeros', s1, 2, 2, 4)[..., ::2]", "i0.mT"), """
        t0 = i1.select(-2, -1)
        t0.le_(2**31)
        return (torch.msort(t0),)"""),
    "channel_shuffle_of_one_group": ((FLOAT,), "return (torch.channel_shuffle(i0[None], 1),)"),
    "out_resized_in_the_operands_order": ((PERMUTED,), """
        t0 = torch.add(i0, 1, out=torch.empty(0))
        return (t0, t0.contiguous())"""),
    # Strides.
    "isin": (("filled('float16', 'exact', 2, 1, 3).permute(2, 1, 0)",), "return (torch.isin(i0, 1),)"),
    "logsigmoid": ((PERMUTED,), "return (F.logsigmoid(i0),)"),
    "ldexp": ((PERMUTED,), "return (torch.ldexp(i0[:, :1], i0),)"),
    "lcm_of_windows": (("filled('int16', 'exact', 5).unfold(0, 3, 1)[..., ::2]",), """
        return (torch.lcm(torch.tensor(True), i0),)"""),
    "expansions_beside_permuted": (
        tuple(f"filled('{t}', 'random', s0, 1, 3).expand(s0, s1, 3)" for t in ("bfloat16", "int64"))
        + ("filled('bfloat16', 'random', s1, 3, s0).permute(2, 0, 1)",), """
        return (i0 * i2, i0.lt(i2), torch.fmin(i0, i2), i1 * i2, i2 - i1, torch.xlogy(i1, i2))"""),
    "indexing_by_permuted_places": (
        (FLOAT, "filled('int64', 'exact', s1, s0).permute(1, 0)"), """
        return (i0[i1 % i0.shape[0]], i0[..., i1 % i0.shape[1]])"""),
    "powers_of_two_of_a_number": (("filled('int64', 'exact', 4)", "filled('bfloat16', 'exact')"), """
        return (torch.ldexp(i0, i1),)"""),
    "shape_of_an_expansion": (("filled('float32', 'random', 1, s1)",), """
        t0 = i0.expand(3, -1)
        t0.t_()
        return (t0, t0 + 1)"""),
    "clamp_of_dimensions_of_one_element": (("filled('float32', 'exact', 1, 1, 3).permute(2, 1, 0)",), """
        t0 = torch.clamp_min(torch.channel_shuffle(i0[None], 1), 3)
        return (t0, torch.inner(i0, i0) - t0)"""),
    "batch_norm_of_one_row": (("filled('float32', 'random', s2, 1, s1).permute(2, 1, 0)",), """
        return (F.batch_norm(i0[None], None, None, training=True),)"""),
    "index_fill_of_windows": (("filled('bool', 'special', 4).unfold(0, 3, 1)",), """
        return (i0.index_fill(-1, torch.tensor([0]), 1),)"""),
    # No elements.
    "as_strided_of_nothing": ((EMPTY,), """
        return (torch.cos(i0, out=torch.zeros_like(i0.T).T),)"""),
    "softmax_of_no_integers": (("filled('int64', 'random', 0)",), """
        return (torch.softmax(i0, 0), torch.log_softmax(i0, 0))"""),
    "gather_of_nothing": ((FLOAT, "filled('int64', 'exact', 0)"), "return (i0.gather(0, i1),)"),
    "copy_of_nothing_expanded": (("filled('float32', 'random').expand(1, s2, 0, 3)",), """
        return (i0.select(3, -1).clone(),)"""),
    "unfold_of_a_number": (("filled('float32', 'random')",), "return (i0.unfold(0, 1, 1) * 2,)"),
}  # fmt: skip

GRADIENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "mse_loss_of_nothing": ((EMPTY,), "return (F.mse_loss(i0, i0 + 1),)"),
    "a_view_of_an_overlapping_leaf": ((OVERLAPPING, FLOAT), """
        return (i1.clone(), i0.view(i0.shape))"""),
    "an_output_that_is_a_view_of_what_is_saved": ((FLOAT,), """
        return (i0.std().broadcast_to((3,)), i0.amin(0)[::2])"""),
    "a_dead_value_without_a_derivative": ((FLOAT,), """
        t0 = torch.unique_consecutive(i0)
        t1 = t0.real
        return (i0 * 2,)"""),
    "hardsigmoid_in_float64": (("filled('float64', 'random', 9) * 4",), """
        return (F.hardsigmoid(i0),)"""),
    "the_sign_of_what_has_no_derivative": (("filled('float32', 'exact', 9, 5)",), """
        return (torch.log(i0).sgn() * i0, torch.acos(i0).sgn(), torch.sqrt(i0).sgn() / 3 + i0)"""),
    "an_output_without_a_gradient": (("filled('float32', 'exact', 9) / 2",), """
        t0 = torch.acos(i0)
        t1 = i0.std()
        torch.lt(t0, t0, out=torch.zeros_like(t0, dtype=torch.float64))
        return (t1,)"""),
}  # fmt: skip

#: Losses whose gradients have a layout of their own.
BACKWARD_LAYOUTS = ("F.mse_loss(i0, i0, reduction='none')", "F.smooth_l1_loss(i0, i0 + 1, reduction='none')",
    "F.huber_loss(i0, i1, reduction='none')",
    "F.binary_cross_entropy(i0.sigmoid(), i1.sigmoid().detach(), reduction='none')")  # fmt: skip

DYNAMIC: dict[str, tuple[tuple[str, ...], str]] = {
    "a_written_input_and_a_row_of_it": (("filled('float64', 'random', s2, 1)", "i0[0]"), """
        i0.index_copy_(0, torch.tensor([0]), i0.narrow(0, -1, 1).clone())
        return (0.001 * i1 + -1,)"""),
    "a_size_that_only_strides_show": (("filled('int64', 'zeros', 1, 6)[..., 1:-2]", "i0[1:]"), """
        t0 = F.linear(i1, i0)
        return (torch.fmod(t0, i0.double(), out=torch.zeros_like(t0, dtype=torch.float64)),)"""),
}  # fmt: skip

#: Calls that eager refuses.
REFUSED = {
    "relu_of_truth_values": "filled('bool', 'random', 9)|F.relu(i0.reshape(3, 3), inplace=True)",
    "as_strided_beyond_the_storage": "filled('int16', 'random', 3)|i0[1:].as_strided((3,), (1,)) + 1",
    "as_strided_beyond_a_new_tensor": "filled('float32', 'random', 3)|(i0 + 1).as_strided((4,), (1,))",
    "clamp_min_to_no_half": "filled('float16', 'exact', 3)|torch.clamp_min(i0, 2**62)",
    "add_times_no_int8": "filled('int8', 'exact', 3)|torch.add(i0, i0, alpha=300)",
    "full_like_no_int8": "filled('int8', 'exact', 3)|torch.full_like(i0, 300)",
    "threshold_to_no_half": "filled('float16', 'exact', 3)|F.threshold(i0, 1, 2**62)",
    "power_of_no_half": "filled('float16', 'exact', 3)|i0 ** (2**62)",
    "subtraction_from_truth_values": "filled('bool', 'exact', 3)|i0 - 0.5",
    "truth_values_subtracted": "filled('bool', 'exact', 3)|0.001 - i0",
    "argmax_of_truth_values": "filled('bool', 'exact', 3)|torch.argmax(i0)",
    "lerp_to_another_dtype": "filled('bfloat16', 'exact', 3)|torch.lerp(i0, i0, i0, out=torch.empty(0))",
    "index_add_of_another_dtype": "filled('float32', 'exact', 3)|i0.index_add(0, i0.long() * 0, i0.double())",
    "index_copy_of_another_dtype": "filled('int64', 'exact', 3)|i0.index_copy(0, i0 * 0, i0.float())",
    "index_put_of_another_dtype": "filled('int64', 'exact', 3)|i0.index_put((i0 * 0,), i0.float(), True)",
    "gcd_of_floats": "filled('float32', 'exact', 3)|torch.gcd(i0, i0 + 1)",
    "put_of_another_dtype": "filled('float32', 'exact', 3)|i0.put(i0.long() * 0, i0.double())",
    **{
        f"{name}_of_weights_of_another_dtype": f"filled('float32', 'random', 3, 4, 4)|F.{call}"
        for name, call in (
            ("layer_norm", "layer_norm(i0, (4,), i0[0, 0].double())"),
            ("group_norm", "group_norm(i0, 2, i0[0, 0].double())"),
            ("instance_norm", "instance_norm(i0, weight=i0[0, 0].double())"),
            ("batch_norm", "batch_norm(i0, i0[0, 0].double(), i0[0, 0].double() + 9)"),
            ("nll_loss", "nll_loss(i0, i0[:, 0].long() * 0, i0[0, 0].double())"),
            ("cross_entropy", "cross_entropy(i0, i0[:, 0].long() * 0, i0[0, 0].double())"),
            ("grid_sample", "grid_sample(i0[None], i0[None, ..., :2].double())"),
        )
    },
    "binary_cross_entropy_of_two_dtypes": "filled('float32', 'random', 3)|"
    "F.binary_cross_entropy(i0.sigmoid(), i0.sigmoid().double())",
    "huber_loss_of_whole_numbers": "filled('int64', 'exact', 3)|F.huber_loss(i0, i0 + 0.5)",
    "addcdiv_of_whole_numbers": "filled('int64', 'exact', 3)|torch.addcdiv(i0, i0, i0 + 20)",
    "tanhshrink_of_truth_values": "filled('bool', 'exact', 3)|F.tanhshrink(i0)",
    "nansum_of_complex_numbers": "filled('complex64', 'random', 3)|torch.nansum(i0)",
    "a_truth_value_as_alpha": "filled('float32', 'exact', 3)|torch.add(i0, i0, alpha=True)",
    "a_row_added_to_a_number": "filled('float32', 'exact', 1, 8)|torch.addmm(i0, i0, i0.mT)",
    "a_matrix_added_to_a_vector": "filled('float32', 'exact', 3, 3)|torch.addmv(i0, i0, i0[0])",
    "adaptive_pool_of_nothing": "filled('float32', 'exact', 2, 3, 0)|F.adaptive_avg_pool1d(i0, 2)",
    "out_that_is_an_operand": "filled('float32', 'exact', 1, 4)|torch.fmod(i0.mean((0, 1)), i0, out=i0[0, 0])",
    "a_larger_operand_in_place": "filled('bool', 'exact', 1, 4)|i0.bitwise_and_(i0.mT)",
    "a_gather_from_equal_numbers": "filled('int64', 'zeros', 1)|torch.ones(3).gather(0, i0 + 5)",
    "nan_among_whole_numbers": "filled('int64', 'exact', 3)|torch.full_like(i0, float('nan'))",
    "a_number_that_uint8_has_not": "filled('float32', 'exact', 3)|torch.full((2,), 300, dtype=torch.uint8)",
    "two_targets_of_a_sample": "filled('float32', 'random', 3)|F.nll_loss(i0, i0[:2].long() * 0)",
    "soft_margin_loss_that_broadcasts": "filled('float32', 'exact', 2, 1)|F.soft_margin_loss(i0, i0.mT)",
}


#: Triton's zero has no sign, its -x is 0 - x, its / is not IEEE's.
ON_GPUS: dict[str, tuple[tuple[str, ...], str]] = {
    "negative_zero": (
        (FLOAT, "filled('int64', 'exact', 9)"),
        """
        t0 = torch.where(i0 > 0, -0.0, i0)
        return (i0 / -0.0, torch.copysign(i0, -0.0), torch.div(i0, -0.0, rounding_mode='floor'), 1 / t0,
            (-0.0) ** i1, torch.floor_divide(i1, -0.0))""",
    ),
    "negative_zero_of_float64": (
        ("filled('float64', 'random', 9)",),
        """
        return (i0 / -0.0, torch.copysign(i0, -0.0))""",
    ),
    "the_negative_of_zero": (
        ("filled('float32', 'zeros', 9)", "filled('float16', 'zeros', 9)"),
        """
        return (1 / -i0, torch.neg(i1).reciprocal(), torch.copysign(i0 + 1, -i0))""",
    ),
    "quotients_that_are_whole": (
        ("filled('float32', 'random', 9, 40)",),
        """
        t0 = i0.abs() + 0.1
        return (torch.div(i0, i0 * 1, rounding_mode='trunc'), (t0 * 3) // t0, torch.div(t0, t0, rounding_mode='floor'))""",
    ),
    "numbers_of_uint8": (
        ("filled('uint8', 'extreme', 9)",),
        """
        return (i0 >= -1, i0 | -1, i0 ^ -(2**31), i0 == -1, i0.bitwise_and(-2))""",
    ),
    "negatives_of_the_least_number": (
        ("filled('int16', 'extreme', 9)", "filled('int8', 'extreme', 9)"),
        """
        return ((-i0).sum(), (-i1).sum(), i0.neg().long(), i0.abs().long(), i1.abs().float(), -i0 > 0)""",
    ),
    "a_write_to_nothing": (
        (EMPTY,),
        """
        i0.add_(1)
        return (i0.as_strided((0,), (1,)).fill_(0), i0 // 0.5, F.log_softmax(i0 // 0.5, -1).exp())""",
    ),
    "a_norm_that_vanishes": (
        ("filled('float64', 'zeros') + 1e-200",),
        """
        return (torch.linalg.vector_norm(i0, 3, 0),)""",
    ),
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [*PROGRAMS, *ON_GPUS])
def test_program_on_a_gpu(name):
    actual = _found(*{**PROGRAMS, **ON_GPUS}[name], Mode(device="cuda"))
    if actual.status == "invalid":
        pytest.skip(f"eager: {actual.where}")
    assert actual.status == "same", actual


def _found(inputs: tuple[str, ...], body: str, mode: Mode, raises: bool = False) -> Result:
    names = ", ".join(f"i{k}" for k in range(len(inputs)))
    lines = "\n    ".join(line.strip() for line in body.strip().splitlines())
    source = f"def program({names}):\n    {lines}\n"
    steps = ((4, 5, 17, 0), (4, 5, 17, 3))
    return run(Program(0, mode, inputs, source, steps, raises=raises))


def _run(inputs: tuple[str, ...], body: str, mode: Mode, raises: bool = False) -> None:
    actual = _found(inputs, body, mode, raises)
    assert actual.status == "same", actual


@pytest.mark.sweep(keep=25)
@pytest.mark.parametrize("name", [*PROGRAMS, *ON_GPUS])
def test_program(name):
    _run(*{**PROGRAMS, **ON_GPUS}[name], Mode())


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    _run(*GRADIENTS[name], Mode(gradients=True))


@pytest.mark.parametrize("text", BACKWARD_LAYOUTS)
def test_layouts_of_backwards(text):
    _run((PERMUTED, FLOAT), f"return ({text},)", Mode("aten_eager", gradients=True))


@pytest.mark.parametrize("name", DYNAMIC)
def test_changing_sizes(name):
    _run(*DYNAMIC[name], Mode(dynamic=True))


@pytest.mark.sweep(keep=14)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name):
    inputs, text = REFUSED[name].split("|")
    _run((inputs,), f"return ({text},)", Mode(), raises=True)


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("base", ["(-1)", "(-2.5)", "(-0.0)"])
def test_power_of_a_negative_number(backend, base):
    """FX writes -1 ** x without parentheses."""
    _run(("filled('int32', 'exact', 9)",), f"return ({base} ** i0.abs(),)", Mode(backend))


@pytest.mark.parametrize("dims", ["1, 0", "2, -1", "(1, 2), (0, -1)", "3"])
def test_strides_of_roll(dims):
    """Eager concatenates two parts, which keeps channels last."""
    inputs = "filled('float32', 'random', 2, 3, 4, 5)"
    body = f"return (torch.roll(i0.to(memory_format=torch.channels_last), {dims}),)"
    _run((inputs,), body, Mode())


#: Operators without kernels for integers: eager raises NotImplementedError, and so do we, where
#: kernels of ours would truncate or not compile.
WITHOUT_KERNELS = (
    "F.softmax(i0, 0)", "F.log_softmax(i0, 0)", "F.gelu(i0)", "F.silu(i0)", "F.softplus(i0)", "F.mish(i0)",
    "F.hardswish(i0)", "F.logsigmoid(i0)", "F.glu(i0, 0)", "torch.hypot(i0, i0)", "torch.frac(i0)",
    "torch.nextafter(i0, i0)", "torch.logcumsumexp(i0, 0)", "F.smooth_l1_loss(i0, i0)",
    "F.adaptive_avg_pool1d(i0[None], 2)", "F.adaptive_max_pool1d(i0[None], 2)", "F.max_pool1d(i0[None], 2)",
    "F.interpolate(i0[None, None], size=2, mode='area')", "F.cross_entropy(i0, i0[0])",
    "torch.floor(i0 > 0)", "torch.abs(i0 > 0)", "F.avg_pool1d((i0 > 0)[None], 2)",
)  # fmt: skip


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("text", WITHOUT_KERNELS)
def test_a_dtype_without_a_kernel(text):
    scope: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    exec(f"def program(i0): return {text}", scope)
    given = torch.arange(8)
    with pytest.raises(NotImplementedError):
        scope["program"](given)
    with pytest.raises(NotImplementedError):
        tracer_core.compile(scope["program"])(given)


def test_polar_of_two_dtypes_is_refused():
    inputs = ("filled('float32', 'random', 4)", "filled('bfloat16', 'random', 4)")
    _run(inputs, "return (torch.polar(i0, i1),)", Mode(), raises=True)


def test_inputs_with_the_names_of_methods():
    """A second graph takes what the first one calls as_strided."""

    def f(x, unfold, expand, add_):
        as_strided = x.as_strided((2,), (1,))
        actual = as_strided[as_strided > 0]
        as_strided.clamp_(min=0)
        unfold.mul_(2)
        return actual, expand + unfold + add_

    inputs = [[torch.randn(9), torch.ones(3), torch.ones(3), torch.ones(3)] for _ in range(3)]
    for backend in ("aten_eager", "inductor"):
        fast = tracer_core.compile(f, backend=backend, dynamic=True)
        for item in copy.deepcopy(inputs):
            again = copy.deepcopy(item)
            compare((f(*item), item), (fast(*again), again))


def test_gradient_of_a_small_soft_margin_loss():
    """torch's decomposition subtracts two numbers that are almost equal."""

    def gradient(x, target):
        x = x.detach().requires_grad_()
        torch.nn.functional.soft_margin_loss(x, target).backward()
        return x.grad

    x, target = torch.linspace(0.5, 3, 64), torch.full((64,), 7.0)
    exact = gradient(x.double(), target.double())
    actual = tracer_core.compile(gradient, backend="inductor")(x, target)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=0)


PARTS = {
    "chunk": lambda y: y.chunk(2),
    "split": lambda y: y.split([1, 1]),
    "unbind": lambda y: y.unbind(0),
    "view of a part": lambda y: [part.view(-1) for part in y.chunk(2)],
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("where", ["inside", "result", "with a gradient"])
def test_a_write_in_place_to_one_of_several_views_is_refused(name, where):
    def program(x):
        y = x * 1
        parts = PARTS[name](y)
        if where == "inside":
            parts[0].mul_(2)
        return y, parts

    x = torch.ones(2, 3, requires_grad=where != "with a gradient")
    for called in (program, *[tracer_core.compile(program)] * 2):
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            parts = called(x)[1]
            parts[0].mul_(torch.full_like(parts[0], 2, requires_grad=True))


def test_a_write_in_place_to_a_view_made_without_gradients_is_refused():
    def program(x):
        y = x * 1
        with torch.no_grad():
            part = y[0]
        return y, part, y[1]

    for called in (program, *[tracer_core.compile(program)] * 2):
        y, part, other = called(torch.ones(2, 3, requires_grad=True))
        other.mul_(3)
        assert y.tolist() == [[1.0] * 3, [3.0] * 3]
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            part.mul_(2)


@pytest.mark.parametrize("bound", ["min", "max", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_bound_that_is_nan(bound, dtype):
    nan = float("nan")
    bounds = {"min": (nan, None), "max": (None, nan), "both": (0.0, nan)}[bound]

    def program(x):
        return x.clamp(*bounds), x[::2].clamp(*bounds)

    x = torch.linspace(-2, 2, 40).to(dtype)
    for item, other in zip(tracer_core.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(item, other, equal_nan=True)


@pytest.mark.parametrize(
    "product",
    [torch.matmul, torch.mm, torch.nn.functional.linear, torch.cdist, lambda a, b: a @ b,
     lambda a, b: torch.mv(a, b[0])],
)  # fmt: skip
def test_a_product_of_two_dtypes_raises_and_what_was_written_is_written_once(product):
    def program(x, other):
        x.gt_(0.5)
        return product(x, other) + 1

    other = torch.ones(2, 2, dtype=torch.float64)
    for called in (program, *[tracer_core.compile(program)] * 2):
        x = torch.tensor([[0.0, 1.0], [0.6, 0.2]])
        try:
            called(x, other)
        except RuntimeError:
            pass
        else:
            assert product is torch.cdist  # some torch casts
        assert x.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_product_of_two_dtypes_under_autocast():
    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w, torch.nn.functional.linear(x, w)

    x, w = torch.randn(3, 3), torch.randn(3, 3, dtype=torch.bfloat16)
    for item, other in zip(tracer_core.compile(program)(x, w), program(x, w), strict=True):
        torch.testing.assert_close(item, other)


def test_a_list_of_dtypes_that_are_not_promoted_raises():
    def program(x, y):
        torch._foreach_mul_([x], [y])
        return x

    for called in (program, *[tracer_core.compile(program)] * 2):
        with pytest.raises(RuntimeError, match="Promotion for uint16"):
            called(torch.ones(2).to(torch.uint32), torch.ones(2, dtype=torch.bool))


def test_an_element_of_nothing_raises_though_nothing_reads_it():
    def program(x):
        y = x.diff(dim=-2)
        y.select(0, -1)
        return y + 1

    for called in (program, *[tracer_core.compile(program)] * 2):
        with pytest.raises(IndexError, match="out of range"):
            called(torch.zeros(1, 4))


def test_sizes_in_place_beside_sizes_that_depend_on_data():
    def program(x):
        y = x.to(torch.int8)
        y[y == 0] += 1
        y.unsqueeze_(0)
        return y + 1

    for backend in ("inductor", "aten_eager"):
        for dynamic in (None, True):
            compiled = tracer_core.compile(program, backend=backend, dynamic=dynamic)
            for size in (3, 5):
                x = torch.arange(2.0 * size).reshape(2, size)
                assert torch.equal(compiled(x), program(x))
