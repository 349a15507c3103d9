"""Reductions, losses, normalizations, random numbers, quantization, and what else layers are made of."""

from __future__ import annotations

from tracer_core.ops.traits import OpFamily, Trait

_ASSERTS = Trait.RAISES_BY_VALUE | Trait.ASSERTS_ON_GPU

FAMILIES = (
    OpFamily("sum mean amax amin var_mean _softmax _log_softmax native_layer_norm"
             " native_group_norm native_dropout _native_batch_norm_legit_functional"
             " nll_loss_forward nll_loss2d_forward", Trait.READS_ALL),
    OpFamily("nll_loss2d nll_loss_nd cross_entropy cross_entropy_loss binary_cross_entropy"
             " multi_margin_loss multilabel_margin_loss", _ASSERTS),
    OpFamily("huber_loss.default soft_margin_loss.default", Trait.DTYPE_OF_FIRST),
    OpFamily("multilabel_margin_loss_forward ctc_loss _use_cudnn_ctc_loss", Trait.RAISES_BY_VALUE),

    OpFamily("bernoulli binomial dirichlet multinomial normal normal_functional poisson",
             Trait.RAISES_BY_VALUE),
    OpFamily("multinomial.default", Trait.BLOCKS, "it checks its probabilities on the host"),

    OpFamily("pack_padded_sequence pad_packed_sequence _padded_dense_to_jagged_forward"
             " _nested_tensor_size _spdiags", Trait.RAISES_BY_VALUE),
    # Scales and zero points are checked, and so are observed ranges.
    OpFamily("quantize_per_tensor fake_quantize_per_tensor_affine fake_quantize_per_channel_affine"
             " fake_quantize_per_tensor_affine_cachemask _fused_moving_avg_obs_fq_helper_functional"
             " fake_quantize_per_channel_affine_cachemask"
             " _fake_quantize_learnable_per_tensor_affine_backward"
             " _fake_quantize_learnable_per_channel_affine_backward", Trait.RAISES_BY_VALUE),
    # Backwards that may meet other values than their forwards did, and calls of autograd.
    OpFamily("_embedding_bag_backward _embedding_bag_dense_backward"
             " _embedding_bag_per_sample_weights_backward _segment_reduce_backward"
             " backward grad autograd_grad", Trait.RAISES_BY_VALUE),
    OpFamily("_assert _assert_async _check", Trait.RAISES_BY_VALUE),
)  # fmt: skip
