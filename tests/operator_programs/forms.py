"""What a statement of an operator program may be: templates by the operands that they take.

In: nothing. Out: `TABLES`: how often each table is tried, and its forms. In a text ``{a}``,
``{b}``, ``{c}`` stand for tensors, ``{d}`` and ``{e}`` for dimensions of a, ``{k}`` and ``{l}`` for
numbers. What always holds: a form says by its `rules` which operands give it a defined result; eager
decides which it takes.
"""

from __future__ import annotations

import torch

from tests.operator_programs.form import (
    RULES,
    Form,
    Kind,
    anything,
    boolean,
    floating,
    forms,
    functions,
    inexact,
    integral,
    lines_of,
    real,
)
from tests.operator_programs.rules import (
    Rule,
    apart,
    castable,
    castable_to_the_first,
    divisible,
    finite,
    multipliable,
    summable,
    writable,
)

UNARY = functions(
    """abs neg sign sgn positive reciprocal square sqrt rsqrt exp exp2 expm1 log log2 log10 log1p
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid isnan isinf isfinite
    logical_not angle conj_physical""",
    "{a}", anything, rules=(finite,),
) + functions(
    """abs neg sign floor ceil round trunc frac isposinf isneginf signbit nan_to_num deg2rad rad2deg
    erf erfc erfinv lgamma digamma i0 sinc logit relu fix special.entr special.ndtr special.log_ndtr
    special.ndtri special.i0e special.i1 special.i1e special.erfcx bitwise_not""",
    "{a}", real,
) + functions("round", "{a}, decimals=2", floating) + functions(
    "nan_to_num", "{a}, {k}, {l}, -1.0", floating
)  # fmt: skip

BINARY = functions(
    "add sub mul eq ne", "{a}, {b}", anything, anything, rules=(finite,)
) * 2 + functions("div pow", "{a}, {b}", anything, anything, rules=(finite,)) + functions(
    """maximum minimum fmax fmin atan2 hypot logaddexp logaddexp2 copysign nextafter ldexp xlogy
    special.xlog1py lt le gt ge heaviside gcd lcm logical_and logical_or logical_xor bitwise_and
    bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift float_power isclose
    special.zeta""",
    "{a}, {b}", real, real, rules=(divisible,),
) + functions(
    "floor_divide remainder fmod", "{a}, {b}", real, real, rules=(divisible,)
) + functions(
    "div", "{a}, {b}, rounding_mode='floor'", real, real, rules=(divisible,)
) + functions(
    "div", "{a}, {b}, rounding_mode='trunc'", real, real, rules=(divisible,)
) + functions("add sub", "{a}, {b}, alpha={k}", real, real, rules=(summable,)) + functions(
    "lerp", "{a}, {b}, {k}", floating, floating, rules=(summable,)
) + functions("lerp", "{a}, {b}, {c}", floating, floating, floating, rules=(summable,)) + functions(
    "addcmul addcdiv", "{a}, {b}, {c}, value={k}", real, real, real, rules=(summable,)
) + functions("clamp", "{a}, {b}, {c}", real, real, real) + forms("""
    torch.where({c}, {a}, {b})
    torch.where({c}, {a}, {k})
    torch.where({c}, {k}, {a})
    torch.masked_fill({a}, {c}, 1)
""", anything, anything, boolean) + forms("""
    torch.where({a} > {b}, {a}, {b})
    torch.where({a} != {b}, {k}, {b})
    {a}.masked_fill({b} == {b}, 2)
""", real, real) + forms("""
    {a} + {b}
    {a} - {b}
    {a} * {b}
    {a} / {b}
""", anything, anything, rules=(finite,)) + forms("""
    {a} // {b}
    {a} % {b}
    {a} ** {b}
    {a} < {b}
    {a} >= {b}
    torch.polar({a}, {b})
    torch.complex({a}, {b})
""", real, real, rules=(divisible,)) + forms("""
    {a} & {b}
    {a} | {b}
    {a} ^ {b}
    {a} << {b}
    {a} >> {b}
""", real, real)  # fmt: skip

SCALAR = functions(
    "add sub mul div eq ne", "{a}, {k}", anything, rules=(finite,)
) + functions(
    """pow fmod remainder floor_divide lt le gt ge float_power xlogy clamp_min clamp_max
    bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign""",
    "{a}, {k}", real, rules=(divisible,),
) + functions("clamp", "{a}, {k}, {l}", real) + functions("clamp", "{a}, max={k}", real) + forms("""
    {k} - {a}
    {k} / {a}
    {k} ** {a}
    {k} * {a} + {l}
    torch.add({a}, {k}, alpha=2)
    torch.rsub({a}, {k})
    torch.where({a} > {k}, {a}, {l})
    torch.where({a} == {k}, {k}, {l})
    torch.full_like({a}, {k})
    {a}.new_full({a}.shape, 3)
    F.threshold({a}, {k}, {l})
    {a}.masked_fill({a} != {a}, 2)
    {a} == {k}
    torch.isin({a}, {k})
""", real) + forms("""
    {k} // {a}
    {k} % {a}
    torch.div({a}, {k}, rounding_mode='floor')
    torch.div({a}, {k}, rounding_mode='trunc')
""", real, rules=(divisible,))  # fmt: skip

_AXIS = """
    {f}({a}, {d})
    {f}({a}, {d}, keepdim=True)
    {f}({a})
    {f}({a}, ({d}, {e}))
"""


def _over(names: str, kind: Kind, rules: tuple[Rule, ...] = (), texts: str = _AXIS) -> list[Form]:
    return [
        Form(text.replace("{f}", f"torch.{name}"), (kind,), (*rules, *RULES.get(name, ())))
        for name in names.split()
        for text in lines_of(texts)
    ]


REDUCED = _over("sum mean", anything, (finite, summable)) * 2 + _over(
    "amax amin", real
) + _over("all any count_nonzero", anything, texts="{f}({a}, {d})\n{f}({a})") + _over(
    "var std nansum nanmean logsumexp", floating, (summable,)
) + _over(
    "prod", real, (multipliable,), "{f}({a}, {d})\n{f}({a})\n{f}({a}, {d}, keepdim=True)"
) + _over(
    "argmax argmin", real, texts="{f}({a}, {d})\n{f}({a})\n{f}({a}, {d}, keepdim=True)"
) + _over("max min cummax cummin aminmax", real, texts="{f}({a}, dim={d})") + _over(
    "max min aminmax median nanmedian", real, texts="{f}({a})"
) + _over(
    "cumsum logcumsumexp", real, (summable,), "{f}({a}, {d})\n{f}({a}.flip({d}), {d})"
) + _over("cumprod", real, (multipliable,), "{f}({a}, {d})") + _over(
    "softmax log_softmax", real, texts="{f}({a}, {d})"
) + _over("sort", real, texts="{f}({a}, dim={d}, stable=True)\n{f}({a}, dim={d}, stable=True, descending=True)") + _over(
    "var_mean std_mean", floating, (summable,), "{f}({a}, {d})\n{f}({a}, {d}, correction=0)\n{f}({a})"
) + forms(  # eager's median of an expanded tensor along a dimension reads what nobody wrote
    """
    {a}.sum({d}, dtype=torch.float64)
    {a}.sum({d}, dtype=torch.int32) if not {a}.is_floating_point() else {a}.sum({d})
    {a}.mean({d}, dtype=torch.float32)
    {a}.var({d}, correction=0, keepdim=True)
    {a}.norm(dim={d})
    {a}.norm(1, dim={d})
    {a}.norm(float('inf'), {d})
    torch.linalg.vector_norm({a}, 3, {d})
    torch.linalg.vector_norm({a}, 0)
    {a}.clone(memory_format=torch.contiguous_format).median({d}).values
    {a}.clone(memory_format=torch.contiguous_format).kthvalue(1, {d}).values
    {a}.topk(1, {d}).values
    {a}.diff(dim={d})
    torch.trapezoid({a}, dim={d})
    F.normalize({a}, dim={d})
    F.layer_norm({a}, {a}.shape[-1:])
    F.softmin({a}, {d})
    F.rms_norm({a}, {a}.shape[-1:])
    torch.quantile({a}, 0.3, {d})
    {a}.softmax({d}, dtype=torch.float64)
    {a}.cumsum({d}, dtype=torch.float64)
    F.log_softmax({a}, {d}).exp()
    {a} - {a}.mean({d}, keepdim=True)
    {a}.sum_to_size({a}.shape[-1:])
    torch.renorm({a}, 2, {d}, 1.5)
    torch.cdist({a}, {a})
    torch.cov({a})
""", floating, rules=(summable,)) + forms("""
    torch.unique({a})
    torch.unique_consecutive({a})
    torch.nonzero({a})
    {a}[{a} != {a}]
    {a}[{a} > 0]
    torch.masked_select({a}, {a} > 0)
    torch.msort({a})
    {a}.argsort({d}, stable=True)
    torch.equal({a}, {a}.clone())
    torch.searchsorted({a}.reshape(-1).sort().values, {a})
    torch.bucketize({a}, torch.arange(3))
    torch.histc({a}, 4, -2, 2)
""", real)  # fmt: skip

VIEWS = forms("""
    {a}.view({a}.shape)
    {a}.view(-1)
    {a}.reshape(-1)
    {a}.reshape({a}.shape[::-1])
    {a}.flatten()
    {a}.ravel()
    {a}.transpose({d}, {e})
    {a}.movedim({d}, {e})
    {a}.permute(tuple(range({a}.dim()))[::-1])
    {a}.T if {a}.dim() < 3 else {a}.mT
    {a}.unsqueeze({d})
    {a}.unsqueeze(-1)
    {a}.squeeze()
    {a}.squeeze({d})
    {a}.select({d}, 0)
    {a}.select({d}, -1)
    {a}.narrow({d}, 0, ({a}.shape[{d}] + 1) // 2)
    {a}[1:]
    {a}[:-1]
    {a}[::2]
    {a}[..., 1::2]
    {a}[..., -1]
    {a}[..., None, :]
    {a}[..., 5:]
    {a}[()]
    {a}[None]
    {a}[:, 0]
    {a}[0, ..., None]
    {a}[-2:, ..., :3]
    {a}.unfold({d}, 1, 1)
    {a}.unfold({d}, 2, 1)
    {a}.diagonal()
    {a}.diagonal(1)
    {a}.expand(2, *{a}.shape)
    {a}.expand_as({a})
    {a}.broadcast_to((3, *{a}.shape))
    {a}.unsqueeze(-1).expand(*{a}.shape, 2)
    {a}.as_strided((2,), (1,))
    {a}.as_strided({a}.shape, {a}.stride())
    {a}.chunk(2, {d})
    {a}.split(1, {d})[-1]
    {a}.unbind({d})
    {a}.tensor_split(2, {d})
    {a}.swapaxes({d}, {e})
    {a}.detach()
    {a}.view_as({a})
    {a}.real
    {a}.imag if {a}.is_complex() else {a}.mH
    torch.view_as_real({a}) if {a}.is_complex() else {a}.conj()
    {a}.contiguous()
    {a}.clone()
    torch.atleast_2d({a})
    {a}.unflatten({d}, (1, -1))
    {a}.flatten(0, 1)
    {a}.adjoint() if {a}.dim() > 1 else {a}.conj()
""") + forms("""
    {a}.view(torch.uint8)
    {a}.view(torch.int16)
    {a}.view(torch.int32)
    {a}.view(torch.int64)
""", lambda x: integral(x) or boolean(x)) + forms("""
    {a}.contiguous(memory_format=torch.channels_last)
    {a}.to(memory_format=torch.channels_last)
    {a}.clone(memory_format=torch.contiguous_format)
    {a}.permute(0, 2, 3, 1)
""", lambda x: x.dim() == 4)  # fmt: skip

MOVED = forms("""
    {a}.flip({d})
    {a}.flip(())
    {a}.roll(1, {d})
    {a}.roll(-1)
    {a}.rot90()
    {a}.tril()
    {a}.triu(1)
    {a}.repeat(2, *[1] * {a}.dim())
    {a}.repeat_interleave(2, {d})
    {a}.tile((2,))
    torch.stack([{a}, {a}.flip({d})], {d})
    torch.diag_embed({a})
    torch.diag({a})
    torch.zeros_like({a})
    torch.ones_like({a}, dtype=torch.int32)
    {a}.new_zeros({a}.shape)
    {a}.new_ones({a}.t().shape)
    {a}[[0, -1]]
    {a}[:, [0, -1]]
    {a}[torch.tensor([0, 0, -1])]
    {a}[torch.zeros(2, 2, dtype=torch.int64)]
    {a}[..., torch.tensor([0])]
    {a}.index_select({d}, torch.tensor([0, 0]))
    {a}.index_select({d}, torch.zeros(0, dtype=torch.int64))
    {a}.take(torch.tensor([0, -1]))
    torch.take_along_dim({a}, torch.zeros_like({a}, dtype=torch.int64), {d})
    torch.gather({a}, {d}, torch.zeros_like({a}, dtype=torch.int64)[:1])
    {a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64)[:0], {a})
    {a}.index_fill({d}, torch.tensor([0]), 1)
    {a}.index_copy({d}, torch.tensor([0]), {a}.narrow({d}, -1, 1))
    {a}.index_put((torch.tensor([0]),), {a}.new_ones(()))
    {a}.select_scatter({a}.select({d}, -1), {d}, 0)
    {a}.slice_scatter({a}.narrow({d}, 0, 1), {d}, 0, 1)
    {a}.diagonal_scatter({a}.diagonal().clone())
    F.pad({a}, (1, 2))
    F.pad({a}, (0, 1), value=1)
    F.pad({a}, (-1, 1))
    F.pad({a}[None], (1, 1), mode='replicate')
    F.pad({a}[None], (1, 0), mode='circular')
    F.pad({a}[None], (1, 1), mode='reflect')
    torch.tril_indices({a}.shape[0], 2)
    {a} + torch.arange({a}.shape[-1])
    {a} * torch.linspace(0, 1, {a}.shape[-1])
    torch.arange({a}.numel()).view({a}.shape)
    {a}.shape[0] + {a}
    {a}.numel() * {a}
    torch.full({a}.shape, 2)
    torch.eye({a}.shape[0])
    torch.block_diag({a}, {a})
    torch.combinations({a})
    torch.vander({a})
    torch.cartesian_prod({a}, {a})
    torch.meshgrid({a}, {a}, indexing='ij')[1]
    torch.hstack([{a}, {a}])
    torch.channel_shuffle({a}[None], 1)
    torch.resolve_conj({a})
""", rules=(finite,)) + forms("""
    torch.cat([{a}, {b}])
    torch.cat([{a}, {b}], -1)
    torch.cat([{a}, {b}, {a}], {d})
    torch.cat([{a}.reshape(-1), {b}.reshape(-1)])
    torch.stack([{a}, {b}], -1)
    torch.column_stack([{a}, {b}])
    torch.broadcast_tensors({a}, {b})
    torch.meshgrid({a}, {b}, indexing='xy')
    {a}.expand_as({b})
    {a}.view_as({b})
    {a}.reshape({b}.shape)
    {a}.select_scatter({b}, 0, 0)
    torch.dstack([{a}, {b}])
""", floating, anything, rules=(finite,)) + forms("""
    torch.cat([{a}, {b}])
    torch.cat([{a}, {b}, {a}], {d})
    torch.stack([{a}, {b}])
""", anything, anything) + forms("""
    {a}.masked_scatter({b}, {a}.flip(0))
    {a}[{b}]
    torch.masked_select({a}, {b})
    {a}.masked_fill({b}, 0)
    {a}.index_put(({b},), {a}.new_ones(()))
""", anything, boolean) + forms("""
    {a}[{b} % {a}.shape[0]]
    {a}.index_select({d}, {b}.reshape(-1).long().abs() % {a}.shape[{d}])
    {a}[..., {b}.long() % {a}.shape[-1]]
    {a}[{b}.long() % {a}.shape[0] - {a}.shape[0]]
    {a}.take({b}.long() % {a}.numel())
    F.embedding({b}.long() % {a}.shape[0], {a})
    F.one_hot({b}.long() % 4, 4)
    torch.bincount({b}.reshape(-1) % 5)
    {a}.gather({d}, {b}.long() % {a}.shape[{d}])
    {a}.repeat_interleave({b}.reshape(-1)[:1].long() % 3, {d})
""", anything, integral, rules=(lambda operands: divisible(operands[1:]),)) + forms("""
    {a}.index_add({d}, {b}.reshape(-1)[:1].long() % {a}.shape[{d}], {a}.narrow({d}, 0, 1))
    {a}.scatter_add({d}, {b}.long() % {a}.shape[{d}], {a})
    {a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {a}, 'amax')
    {a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {a}, 'sum', include_self=False)
    {a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {a}, 'mean')
    {a}.index_put(({b}.reshape(-1).long() % {a}.shape[0],), {a}[0], accumulate=True)
    {a}.index_reduce({d}, torch.zeros({a}.shape[{d}], dtype=torch.int64), {a}, 'amin')
""", real, integral, rules=(summable, divisible))  # fmt: skip

CASTS = (
    forms(
        "\n".join(
            f"{{a}}.to(torch.{name})"
            for name in "float32 float32 float64 bfloat16 float16 bool complex64".split()
        )
    )
    + [
        Form(f"{{a}}.to(torch.{name})", (real,), (castable(info.min, info.max),))
        for name in "int64 int32 int16 int8 uint8 uint16 uint32".split()
        for info in [torch.iinfo(getattr(torch, name))]
    ]
    + forms("{a}.to({b}.dtype)\n{a}.to({b})\n{a}.type_as({b})", inexact, inexact)
)

MATMUL = forms("""
    {a} @ {b}
    {a} @ {b}.mT
    torch.matmul({b}, {a})
    torch.mm({a}, {b}.t())
    torch.outer({a}, {b})
    torch.inner({a}, {b})
    torch.dot({a}, {b})
    torch.kron({a}, {b})
    torch.tensordot({a}, {b}, 1)
    torch.einsum('i...,i...->...', {a}, {b})
    torch.einsum('...i,...i->...', {a}, {b})
    torch.einsum('ij,kj->ki', {a}, {b})
    F.linear({a}, {b})
    torch.bmm({a}, {b}.transpose(1, 2))
    torch.addmm({b}, {a}, {a}.t(), beta=0.5)
    torch.addmv({b}, {a}, {a}[0])
    torch.cross({a}[..., :3], {b}[..., :3], dim=-1)
    torch.linalg.vecdot({a}, {b})
    {a}.mT @ {a}
""", anything, anything, rules=(finite, summable))  # fmt: skip

NN = forms("""
    F.gelu({a})
    F.gelu({a}, approximate='tanh')
    F.silu({a})
    F.mish({a})
    F.softplus({a})
    F.elu({a})
    F.selu({a})
    F.celu({a}, 0.5)
    F.hardtanh({a})
    F.hardswish({a})
    F.hardsigmoid({a})
    F.leaky_relu({a}, 0.1)
    F.leaky_relu({a}, -1.5)
    F.relu6({a})
    F.softsign({a})
    F.tanhshrink({a})
    F.softshrink({a})
    F.hardshrink({a})
    F.logsigmoid({a})
    F.silu({a}.clone(), inplace=True)
    F.glu({a}, {d})
    F.prelu({a}, {a}.new_full((1,), 0.2))
""", floating) + forms("""
    F.max_pool1d({a}.reshape(1, 1, -1), 3, 2, 1)
    F.max_pool2d({a}[None], 2)
    F.max_pool2d({a}[None, None], (1, 2))
    F.avg_pool1d({a}.reshape(1, 1, -1), 2)
    F.avg_pool2d({a}[None, None], 2, 1, 1)
    F.adaptive_avg_pool1d({a}.reshape(1, 1, -1), 2)
    F.adaptive_max_pool1d({a}.reshape(1, 1, -1), 2)
    F.interpolate({a}.reshape(1, 1, -1), scale_factor=2)
    F.interpolate({a}[None, None], scale_factor=2, mode='bilinear')
    F.interpolate({a}[None, None], size=(3, 3))
    F.pixel_shuffle({a}.reshape(4, -1, 1), 2)
    F.unfold({a}[None, None], 2)
    F.batch_norm({a}[None], None, None, training=True)
    F.instance_norm({a}[None])
    F.group_norm({a}[None], 1)
    F.local_response_norm({a}[None], 2)
    F.cross_entropy({a}, torch.zeros({a}.shape[0], dtype=torch.int64))
    F.nll_loss({a}, torch.zeros({a}.shape[0], dtype=torch.int64), reduction='none')
    F.cross_entropy({a}, {a}.softmax(-1), label_smoothing=0.1)
    F.dropout({a}, 0.5, training=False)
    F.scaled_dot_product_attention({a}, {a}, {a})
    F.normalize({a}, p=1, dim={d})
    F.kl_div({a}, {a}.exp(), reduction='sum')
    F.affine_grid({a}.new_ones((1, 2, 3)), (1, 1, 2, 2))
""", floating, rules=(summable,)) + forms("""
    F.mse_loss({a}, {b})
    F.mse_loss({a}, {b}, reduction='none')
    F.l1_loss({a}, {b})
    F.l1_loss({a}, {b}, reduction='sum')
    F.smooth_l1_loss({a}, {b}, reduction='none')
    F.binary_cross_entropy_with_logits({a}, {b})
    F.soft_margin_loss({a}, {b})
    F.kl_div({a}, {b}, reduction='none')
    F.poisson_nll_loss({a}, {b})
    F.hinge_embedding_loss({a}, {b})
    F.cosine_similarity({a}, {b}, -1)
    F.pairwise_distance({a}, {b})
    F.conv1d({a}.reshape(1, 1, -1), {b}.reshape(1, 1, -1)[..., :3])
    F.conv1d({a}.reshape(1, 1, -1), {b}.reshape(1, 1, -1)[..., :2], stride=2, padding=1, dilation=2)
    F.conv2d({a}[None, None], {b}[None, None])
    F.conv2d({a}[None, None], {b}[None, None], padding=2)
    F.conv_transpose1d({a}.reshape(1, 1, -1), {b}.reshape(1, 1, -1)[..., :3], stride=2)
    F.linear({a}, {b}, {b}[:, 0])
    F.bilinear({a}, {b}, {a}.new_ones((2, {a}.shape[-1], {b}.shape[-1])))
    F.layer_norm({a}, {a}.shape[-1:], {b})
    F.scaled_dot_product_attention({a}, {b}, {b})
    F.grid_sample({a}[None, None], {b}.reshape(1, 1, -1, 2))
    F.embedding_bag(torch.zeros(2, 2, dtype=torch.int64), {a})
    F.gaussian_nll_loss({a}, {b}, {b}.abs())
    F.margin_ranking_loss({a}, {b}, {b}.sign())
""", floating, floating, rules=(summable,))  # fmt: skip

WRITES = forms("""
    {a}.fill_(2)
    {a}.zero_()
    {a}[0] = 1
    {a}[..., -1] = 0
    {a}[1:] = {a}[:-1].clone()
    {a}[..., ::2] += 1
    {a}[..., ::2].neg_()
    {a}.T.add_(1)
    {a}.unsqueeze(0).mul_(2)
    {a}.view(-1).add_(1)
    {a}.select({d}, 0).fill_(1)
    {a}.select({d}, 0).copy_({a}.select({d}, -1).clone())
    {a}.masked_fill_({a} == {a}, 1)
    {a}[{a} != 0] = 1
    {a}[{a} == 0] += 1
    {a}.index_fill_({d}, torch.tensor([0]), 1)
    {a}.index_copy_({d}, torch.tensor([0]), {a}.narrow({d}, -1, 1).clone())
    {a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.int64), 1)
    {a}.index_put_((torch.tensor([0]),), {a}.new_ones(()))
    {a}[torch.tensor([0, -1])] = 1
    {a}[[0]] += 1
    {a}.diagonal().add_(1)
    {a}.tril_()
    {a}.triu_(1)
    {a}.unsqueeze_(0)
    {a}.squeeze_()
    {a}.transpose_(0, -1)
    {a}.t_()
    {a}.clamp_(min=0)
    {a}.logical_not_()
    {a}.swapaxes_({d}, {e})
    {a} += 1
    {a} *= 2
    {a} -= {a}.clone()
    torch._foreach_add_([{a}], 1)
    torch.fill({a}, 1)
    {a}.fill_diagonal_(1)
    {a}.flip(0)[0] = 0
    {a}.chunk(2)[-1].add_(1)
    {a}.detach().add_(1)
    {a}.relu_()
    F.relu({a}, inplace=True)
""", real, rules=(writable, divisible), writes=True) + forms("""
    {a}.copy_({b})
    {a}[0] = {b}
    {a}[..., 0] = {b}
    {a}[::2] = {b}
    {a}.T.copy_({b})
    {a}[:] = {b}
    {a}[...] = {b}
    {a}[()] = {b}
    {a}[0] = {b}[0]
""", real, anything, rules=(finite, apart, castable_to_the_first), writes=True) * 2 + forms("""
    {a} += {b}
    {a} *= {b}
    {a} -= {b}
    {a}.addcmul_({b}, {b})
    {a}.lerp_({b}, 0.5)
    {a}.index_add_({d}, torch.tensor([0]), {b})
    {a}.index_put_((torch.tensor([0]),), {b}, accumulate=True)
    {a}.scatter_add_({d}, torch.zeros_like({b}, dtype=torch.int64), {b})
    {a}.copy_({a} + {b})
    {a}[1:] += {b}[1:]
    {a}.select({d}, 0).add_({b}.select({d}, -1))
    {a}.view(-1)[0] = {b}.sum()
    torch._foreach_mul_([{a}], [{b}])
""", real, real, rules=(apart, summable, castable_to_the_first), writes=True) + forms("""
    {a}.masked_fill_({b}, 1)
    {a}[{b}] = 0
    {a}.masked_scatter_({b}, {a}.clone())
    {a}.logical_and_({b})
    {a} &= {b}
""", anything, boolean, rules=(apart,), writes=True)  # fmt: skip

#: Tables, and how often each is tried.
TABLES: tuple[tuple[float, list[Form]], ...] = (
    (3, UNARY), (4, BINARY), (2.5, SCALAR), (3, REDUCED), (4, VIEWS), (3, MOVED), (1.2, CASTS),
    (1, MATMUL), (1.5, NN), (2.5, WRITES),
)  # fmt: skip
#: Numbers in texts.
NUMBERS = (
    "0", "1", "2", "(-1)", "3", "0.5", "(-2.5)", "1.5", "(-0.0)", "float('inf')", "float('nan')", "1e-30",
    "3e38", "(2**31)", "(-2**31)", "(2**62)", "255", "True", "1e-3",
)  # fmt: skip
