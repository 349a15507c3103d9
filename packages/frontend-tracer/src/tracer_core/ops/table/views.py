"""Operators that show, copy or make memory, and those that change how a tensor shows its memory."""

from __future__ import annotations

from tracer_core.ops.traits import OpFamily, Trait

_KERNEL = Trait.VIEW_KERNEL
_OF_ALL = Trait.VIEW | Trait.KEEPS_ELEMENTS | Trait.READS_ALL
_RESHAPES = _OF_ALL | Trait.RESHAPES | Trait.KEEPS_ORDER
_STRIDED = _OF_ALL | Trait.STRIDED_VIEW | _KERNEL
_COPIES = Trait.CHEAP | Trait.EXACT | Trait.READS_ALL

FAMILIES = (
    OpFamily("view.default _unsafe_view.default", _RESHAPES | _KERNEL),
    OpFamily("reshape.default", _RESHAPES),
    OpFamily("unsqueeze.default squeeze.default squeeze.dim squeeze.dims",
             _STRIDED | Trait.KEEPS_ORDER),
    OpFamily("t.default permute.default transpose.int alias.default detach.default", _STRIDED),
    OpFamily("expand.default",
             Trait.VIEW | Trait.STRIDED_VIEW | _KERNEL | Trait.READS_ALL | Trait.CHEAP | Trait.EXACT),
    OpFamily("slice.Tensor select.int", Trait.VIEW | Trait.STRIDED_VIEW | _KERNEL),
    OpFamily("_reshape_alias.default split.Tensor split_with_sizes.default unbind.int"
             " as_strided.default diagonal.default unfold.default", _KERNEL),
    OpFamily("clone.default _to_copy.default", _COPIES | Trait.MOVES),
    OpFamily("cat constant_pad_nd copy flip full_like max_pool1d max_pool2d max_pool3d"
             " max_pool2d_with_indices max_pool3d_with_indices repeat roll stack", Trait.MOVES),

    OpFamily("full.default full_like.default zeros.default zeros_like.default ones.default"
             " ones_like.default arange.default arange.start arange.start_step"
             " scalar_tensor.default", Trait.FILLS | Trait.CHEAP | Trait.EXACT),
    # No fills: the operand, which is read for its dtype and device only, may be much larger.
    OpFamily("new_zeros.default new_ones.default new_full.default", Trait.CHEAP | Trait.EXACT),
    OpFamily("empty_like.default", Trait.CHEAP | Trait.EXACT | Trait.UNINITIALIZED),
    OpFamily("empty empty_strided new_empty empty_permuted", Trait.UNINITIALIZED),

    OpFamily("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_",
             Trait.RESHAPES_IN_PLACE | Trait.SETS_METADATA | Trait.SETS_METADATA_OF_INTERMEDIATES),
    OpFamily("as_strided_ resize_ resize_as_ set_ _set_data",
             Trait.RESHAPES_IN_PLACE | Trait.SETS_METADATA),
    # Capture handles these functions before it looks at their names.
    OpFamily("set_data swap_tensors", Trait.RESHAPES_IN_PLACE),
    OpFamily("requires_grad_ detach_",
             Trait.SETS_METADATA | Trait.SETS_METADATA_OF_INTERMEDIATES),
    OpFamily("rename_ share_memory_ __set__ retain_grad", Trait.SETS_METADATA),
)  # fmt: skip
