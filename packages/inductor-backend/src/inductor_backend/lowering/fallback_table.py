"""Operators that may run as they are, because nobody wrote a lowering yet.

In: nothing. Out: `FALLBACKS`, operators by name. What always holds: each is functional, takes strided
CPU tensors, and its fake result has the strides of the real one. Adding one here is a decision, not a
default: an operator on neither table fails the compile by name.
"""

from __future__ import annotations

from typing import Any

import torch

_NAMES = """
_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default _cdist_forward.default _embedding_bag.default
_embedding_bag_forward_only.default _local_scalar_dense.default _scaled_dot_product_flash_attention_for_cpu.default
_scaled_dot_product_attention_math.default _thnn_fused_lstm_cell.default _trilinear.default _weight_norm_interface.default
_upsample_bicubic2d_aa.default _upsample_bilinear2d_aa.default
adaptive_max_pool2d.default adaptive_max_pool3d.default argsort.default argsort.stable avg_pool2d.default
avg_pool3d.default bernoulli.default bernoulli.p bincount.default bitwise_left_shift.Tensor bucketize.Tensor
cholesky.default col2im.default convolution.default count_nonzero.dim_IntList cummax.default cummin.default
cumprod.default cumsum.default digamma.default erfinv.default exponential.default fft_fft.default frexp.Tensor
gather.default geometric.default grid_sampler_2d.default grid_sampler_3d.default histc.default i0.default
im2col.default index_add.default index_copy.default index_fill.int_Scalar index_put.default
index_reduce.default inverse.default isin.Tensor_Tensor kthvalue.default lgamma.default
linalg_cholesky_ex.default linalg_cross.default linalg_det.default linalg_eigh.default linalg_inv_ex.default
linalg_lu.default linalg_qr.default linalg_solve_ex.default linalg_svd.default linalg_vector_norm.default
log_normal.default logcumsumexp.default masked_scatter.default max_pool2d_with_indices.default
max_pool3d_with_indices.default median.default median.dim mkldnn_rnn_layer.default mode.default
multinomial.default nan_to_num.default nanmedian.default native_dropout.default nextafter.default normal.Tensor_Tensor
normal.Tensor_float normal.float_Tensor normal.float_float normal_functional.default
polygamma.default put.default rand.default rand_like.default randint.default randint.low randint_like.default
randint_like.low_dtype randn.default randn_like.default randperm.default reflection_pad1d.default
reflection_pad2d.default reflection_pad3d.default renorm.default replication_pad1d.default replication_pad2d.default
replication_pad3d.default roll.default scatter.reduce scatter.src scatter.value scatter.value_reduce
scatter_add.default scatter_reduce.two searchsorted.Scalar searchsorted.Tensor segment_reduce.default sort.default
sort.stable special_i0e.default special_i1.default special_ndtri.default take.default topk.default trace.default
tril_indices.default triu_indices.default triangular_solve.default unfold_copy.default uniform.default
upsample_bicubic2d.default upsample_bicubic2d.vec upsample_bilinear2d.default upsample_bilinear2d.vec
upsample_linear1d.default upsample_nearest1d.default upsample_nearest2d.default upsample_nearest2d.vec
upsample_nearest3d.default upsample_trilinear3d.default view_as_real.default
""".split()


def _resolve(names: list[str]) -> frozenset[Any]:
    """The operators of those names that this torch has."""
    found = set()
    for name in names:
        packet, _, overload = name.partition(".")
        operator = getattr(torch.ops.aten, packet, None)
        if operator is not None and overload in operator.overloads():
            found.add(getattr(operator, overload))
    return frozenset(found)


FALLBACKS: frozenset[Any] = _resolve(_NAMES)
