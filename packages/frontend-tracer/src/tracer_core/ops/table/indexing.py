"""Operators that read or write at positions, which are data, and those that sort, select and count."""

from __future__ import annotations

from tracer_core.ops.traits import OpFamily, Trait

_INDEXES = Trait.RAISES_BY_VALUE | Trait.CHECKS_INDICES

FAMILIES = (
    OpFamily("embedding gather index index_add index_copy index_fill index_put index_select nll_loss"
             " scatter scatter_add take take_along_dim", _INDEXES | Trait.ASSERTS_ON_GPU),
    OpFamily("embedding_bag index_reduce nll_loss_forward nll_loss2d_forward one_hot put"
             " repeat_interleave bincount scatter_reduce _unsafe_index _unsafe_index_put",
             _INDEXES),
    OpFamily("index.Tensor _unsafe_index.Tensor index_select.default gather.default embedding.default",
             Trait.GATHERS | Trait.EXACT),
    OpFamily("scatter_add.default index_add.default scatter.src scatter.value index_copy.default"
             " index_fill.int_Scalar index_fill.int_Tensor index_put.default", Trait.SCATTERS),
    OpFamily("read_at read_element", Trait.RAISES_BY_VALUE | Trait.ASSERTS_ON_GPU),
    OpFamily("_embedding_bag _embedding_bag_forward_only masked_scatter max_unpool1d max_unpool2d"
             " max_unpool3d segment_reduce tensor_split histc histogram histogramdd nanquantile"
             " quantile renorm searchsorted", Trait.RAISES_BY_VALUE),
    OpFamily("index.Tensor index_put.default index_put_.default _index_put_impl_.default"
             " _unsafe_index.Tensor _unsafe_index_put.default", Trait.COUNTS_MASKS),
    OpFamily("repeat_interleave.Tensor bincount.default", Trait.BLOCKS, "its size depends on data"),
    OpFamily("histc.default", Trait.BLOCKS, "it reads the range of its input on the host"),
)  # fmt: skip
