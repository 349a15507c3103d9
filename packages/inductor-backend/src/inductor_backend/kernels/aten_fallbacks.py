"""Lists the ATen operators that run as they are (`FALLBACKS`), one call per node.

Each is functional (it writes to none of its arguments) and returns fresh tensors. An operator that
is on no list and has no lowering is an error that names the operator.
"""

from __future__ import annotations

from typing import Any

import torch

#: (why loops do not compute them, aten overloads). A name that this torch does not have is left out.
_GROUPS: tuple[tuple[str, str], ...] = (
    (
        "a matmul or convolution: oneDNN, MKL and native kernels are tuned for it",
        """
        mm.default bmm.default addmm.default baddbmm.default addbmm.default addmv.default mv.default dot.default vdot.default
        addr.default ger.default linear.default _trilinear.default kron.default bmm.dtype
        _int_mm.default _weight_int8pack_mm.default _scaled_mm.default _scaled_mm_v2.default
        _weight_int4pack_mm.default _weight_int4pack_mm_for_cpu.default
        _weight_int4pack_mm_with_scales_and_zeros.default _dyn_quant_matmul_4bit.default
        _grouped_mm.default _scaled_grouped_mm.default _scaled_grouped_mm_v2.default
        convolution.default _convolution.default convolution_backward.default slow_conv3d.default
    """,
    ),
    (
        "attention: ATen computes it block by block, without the matrix of scores",
        """
        _scaled_dot_product_flash_attention_for_cpu.default _scaled_dot_product_attention_math_for_mps.default
        _scaled_dot_product_attention_math.default _scaled_dot_product_flash_attention_for_cpu_backward.default
        _scaled_dot_product_flash_attention.default _scaled_dot_product_flash_attention_backward.default
        _scaled_dot_product_efficient_attention.default _scaled_dot_product_efficient_attention_backward.default
        _scaled_dot_product_cudnn_attention.default _scaled_dot_product_cudnn_attention_backward.default
        _scaled_dot_product_fused_attention_overrideable.default
        _scaled_dot_product_fused_attention_overrideable_backward.default
        _flash_attention_forward.default _flash_attention_backward.default
        _efficient_attention_forward.default _efficient_attention_backward.default
    """,
    ),
    ("rounding to decimals, which eager computes in float32 steps", "round.decimals"),
    (
        "a list of tensors at once: the optimizers' native kernels, a few launches for all parameters",
        """
        _foreach_add.Scalar _foreach_add.List _foreach_add.ScalarList _foreach_add.Tensor _foreach_sub.Scalar
        _foreach_sub.List _foreach_sub.ScalarList _foreach_mul.Scalar _foreach_mul.List _foreach_mul.ScalarList
        _foreach_mul.Tensor _foreach_div.Scalar _foreach_div.List _foreach_div.ScalarList _foreach_div.Tensor
        _foreach_maximum.List _foreach_minimum.List _foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList
        _foreach_addcmul.Scalar _foreach_addcmul.ScalarList _foreach_lerp.List _foreach_lerp.Scalar
        _foreach_sqrt.default _foreach_rsqrt.default _foreach_neg.default _foreach_abs.default
        _foreach_reciprocal.default _foreach_sign.default _foreach_exp.default
    """,
    ),
    (
        "a recurrent layer: oneDNN runs all its steps in one call",
        """
        _cudnn_rnn.default _cudnn_rnn_backward.default _thnn_fused_gru_cell.default
        _thnn_fused_lstm_cell_backward_impl.default _thnn_fused_gru_cell_backward.default
        lstm.input gru.input rnn_tanh.input rnn_relu.input mkldnn_rnn_layer.default mkldnn_rnn_layer_backward.default
        _thnn_fused_lstm_cell.default _pack_padded_sequence.default _pad_packed_sequence.default
    """,
    ),
    (
        "it sorts, selects or counts: no loop over its output's elements",
        """
        sort.default sort.stable argsort.default argsort.stable topk.default kthvalue.default median.default median.dim
        nanmedian.default nanmedian.dim mode.default msort.default searchsorted.Tensor searchsorted.Scalar bucketize.Tensor
        unique_dim.default _unique2.default unique_consecutive.default nonzero.default nonzero_static.default
        masked_select.default bincount.default histc.default histogram.bin_ct
        repeat_interleave.Tensor repeat_interleave.self_Tensor repeat_interleave.self_int isin.Tensor_Tensor
        isin.Tensor_Scalar isin.Scalar_Tensor count_nonzero.default count_nonzero.dim_IntList
    """,
    ),
    (
        "a scatter through a mask, or into segments of lengths that are data",
        """
        masked_scatter.default masked_scatter_backward.default _embedding_bag_dense_backward.default
        _embedding_bag_backward.default _embedding_bag_per_sample_weights_backward.default
        segment_reduce.default _segment_reduce_backward.default
    """,
    ),
    (
        (
            "scans and scatters: lowered, but for tensors without dimensions, several masks and"
            " complex numbers"
        ),
        """
        cumsum.default cumprod.default cummax.default cummin.default logcumsumexp.default
        _unsafe_index_put.default
        index_put.default index_add.default index_copy.default index_fill.int_Scalar index_fill.int_Tensor
        index_reduce.default scatter.src scatter.value scatter_add.default scatter_reduce.two scatter.reduce
        scatter.value_reduce put.default embedding_dense_backward.default unfold_backward.default
        max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default
        adaptive_max_pool2d_backward.default adaptive_max_pool3d_backward.default
        fractional_max_pool2d_backward.default fractional_max_pool3d_backward.default
    """,
    ),
    (
        "indexing whose forms are many; a lowering takes the usual ones",
        """
        index.Tensor gather.default take.default embedding.default index_select.default select_scatter.default
        slice_scatter.default diagonal_scatter.default as_strided_scatter.default _embedding_bag.default
        _embedding_bag_forward_only.default embedding_bag.padding_idx
    """,
    ),
    (
        "adaptive and uneven windows, windows of more than 64 elements, unpooling, an affine grid",
        """
        max_pool2d_with_indices.default max_pool3d_with_indices.default avg_pool2d.default avg_pool3d.default
        avg_pool2d_backward.default avg_pool3d_backward.default _adaptive_avg_pool2d.default
        _adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d.default _adaptive_avg_pool3d_backward.default
        adaptive_max_pool2d.default adaptive_max_pool3d.default fractional_max_pool2d.default
        fractional_max_pool3d.default max_unpool2d.default max_unpool3d.default affine_grid_generator.default
    """,
    ),
    (
        (
            "padding, shuffles and columns: lowered, but for nothing to pad and for symbolic sizes"
            " of columns"
        ),
        """
        im2col.default col2im.default channel_shuffle.default constant_pad_nd.default
        reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default
        replication_pad1d.default replication_pad2d.default replication_pad3d.default
        reflection_pad1d_backward.default reflection_pad2d_backward.default reflection_pad3d_backward.default
        replication_pad1d_backward.default replication_pad2d_backward.default replication_pad3d_backward.default
    """,
    ),
    (
        (
            "sampling at a grid: lowered where channels lie together; else ATen's loads by position"
            " are faster"
        ),
        """
        grid_sampler_2d.default grid_sampler_3d.default grid_sampler_2d_backward.default
        grid_sampler_3d_backward.default
    """,
    ),
    (
        (
            "interpolation: lowered, but for rows that grow by no whole factor, uint8, and"
            " antialiasing"
        ),
        """
        upsample_nearest1d.default upsample_nearest2d.default upsample_nearest3d.default upsample_linear1d.default
        upsample_bilinear2d.default upsample_bicubic2d.default upsample_trilinear3d.default
        upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec upsample_bilinear2d.vec
        upsample_bicubic2d.vec upsample_trilinear3d.vec _upsample_nearest_exact1d.default _upsample_nearest_exact2d.default
        _upsample_nearest_exact3d.default _upsample_bilinear2d_aa.default _upsample_bicubic2d_aa.default
        upsample_nearest1d_backward.default upsample_nearest2d_backward.default upsample_nearest3d_backward.default
        upsample_linear1d_backward.default upsample_bilinear2d_backward.default upsample_bicubic2d_backward.default
        upsample_trilinear3d_backward.default _upsample_nearest_exact1d_backward.default
        _upsample_nearest_exact2d_backward.default _upsample_nearest_exact3d_backward.default
        _upsample_bilinear2d_aa_backward.default _upsample_bicubic2d_aa_backward.default _upsample_lanczos2d_aa.default
        _upsample_lanczos2d_aa_backward.default
    """,
    ),
    (
        (
            "random numbers: eager's stream is ATen's (dropout on a GPU is kernels, but with"
            " fallback_random)"
        ),
        """
        native_dropout.default bernoulli.default bernoulli.p bernoulli.Tensor
        rand.default rand_like.default randn.default randn_like.default randint.default randint.low randint_like.default
        randint_like.low_dtype randperm.default normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor
        normal_functional.default uniform.default exponential.default geometric.default multinomial.default
        poisson.default log_normal.default cauchy.default
    """,
    ),
    (
        "distances and linear algebra: LAPACK",
        """
        _cdist_backward.default cdist.default _pdist_forward.default _pdist_backward.default
        _euclidean_dist.default dist.default renorm.default trace.default cov.default corrcoef.default
        linalg_matrix_norm.default linalg_inv_ex.default linalg_solve_ex.default
        _linalg_solve_ex.default linalg_qr.default linalg_cholesky_ex.default cholesky.default cholesky_solve.default
        cholesky_inverse.default _linalg_svd.default _linalg_eigh.default linalg_eig.default linalg_eigvals.default
        _linalg_det.default _linalg_slogdet.default linalg_lu.default linalg_lu_factor_ex.default linalg_lu_solve.default
        lu_unpack.default linalg_solve_triangular.default triangular_solve.default linalg_lstsq.default
        linalg_matrix_exp.default linalg_pinv.atol_rtol_tensor linalg_ldl_factor_ex.default linalg_cross.default
        linalg_householder_product.default ormqr.default geqrf.default matrix_exp.default
    """,
    ),
    (
        "complex numbers, which loops do not hold",
        """
        _fft_r2c.default _fft_c2r.default _fft_c2c.default complex.default polar.default view_as_real_copy.default
        view_as_complex_copy.default _conj_physical.default conj_physical.default angle.default
    """,
    ),
    (
        "rows of a nested tensor, whose lengths it checks",
        "_padded_dense_to_jagged_forward.default",
    ),
    (
        "a loss that walks along its target",
        """
        _ctc_loss.default _ctc_loss.Tensor _ctc_loss_backward.default _ctc_loss_backward.Tensor
        _use_cudnn_ctc_loss.default multi_margin_loss_backward.default
        multilabel_margin_loss_forward.default multilabel_margin_loss_backward.default
    """,
    ),
    (
        (
            "a special function without a vector form of ours (ATen has Sleef's, or a scalar loop"
            " that ours would repeat)"
        ),
        """
        lgamma.default polygamma.default igamma.default igammac.default special_bessel_j0.default
        special_bessel_j1.default special_bessel_y0.default special_bessel_y1.default special_ndtri.default
        special_log_ndtr.default special_erfcx.default special_zeta.default special_modified_bessel_i0.default
        special_modified_bessel_i1.default special_modified_bessel_k0.default special_modified_bessel_k1.default
        frexp.Tensor rrelu_with_noise_backward.default
    """,
    ),
    (
        "a special function that is lowered, but for float64 (nextafter: for 16 bits)",
        """
        erfinv.default digamma.default i0.default special_i0e.default special_i1.default special_i1e.default
        nextafter.default
    """,
    ),
    (
        (
            "a loop until nothing is left, which a block of a Triton kernel would do as often as"
            " its slowest element"
        ),
        """
        gcd.default lcm.default
    """,
    ),
    (
        "forms that a lowering takes where it can, and hands on where it cannot",
        """
        native_layer_norm.default native_group_norm.default native_batch_norm.default
        _native_batch_norm_legit_no_training.default _softmax.default _log_softmax.default
        _cdist_forward.default linalg_vector_norm.default multi_margin_loss.default
        aminmax.default argmax.default argmin.default max.dim min.dim var_mean.correction std_mean.correction
        logsumexp.default roll.default flip.default rot90.default repeat.default tril_indices.default
        triu_indices.default sized.default kaiser_window.default
        fft_fftfreq.default fft_rfftfreq.default
        diag_embed.default diagonal_copy.default unfold_copy.default as_strided_copy.default
        zeros.default _to_copy.default clone.default vander.default block_diag.default cartesian_prod.default combinations.default
        _masked_softmax_backward.default
    """,
    ),
    (
        "quantisation",
        """
        quantize_per_tensor.default dequantize.self fake_quantize_per_tensor_affine_cachemask.default
        fake_quantize_per_channel_affine_cachemask.default
        _fused_moving_avg_obs_fq_helper_functional.default
        _fake_quantize_learnable_per_tensor_affine_backward.default
        _fake_quantize_learnable_per_channel_affine_backward.default _spdiags.default _nested_tensor_size.default
    """,
    ),
)


def name_of_packet(target: Any) -> str:
    """Returns ``index_add`` for ``aten.index_add.default``."""
    return str(target.overloadpacket).partition(".")[2]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    library = torch.ops.tracer_core if packet == "sized" else torch.ops.aten
    return getattr(getattr(library, packet, None), overload, None)


#: Every overload that may run unchanged -> why loops do not compute it.
FALLBACKS: dict[Any, str] = {
    operator: reason
    for reason, listed in _GROUPS
    for operator in map(_overload, listed.split())
    if operator is not None
}
