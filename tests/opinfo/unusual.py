"""What the sweep cannot compare in the usual way, each with the reason.

In: nothing. Out: tables by the operator's name in the database. What always holds: a row that is
left out or judged less strictly is named here.
"""

from __future__ import annotations

#: Their results are memory that nobody has written to: sizes, strides and dtype are compared.
NO_VALUES = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
}  # fmt: skip

#: Parts of a result that eager's kernel does not set (seeds of a dropout that is not there) ->
#: their places in the tuple.
UNSET_PARTS: dict[str, tuple[int, ...]] = {
    "torch.ops.aten._flash_attention_forward": (2, 3, 4),
    "torch.ops.aten._efficient_attention_forward": (2, 3),
}

#: Eager's native kernels read memory that nobody has written to, or die, for some variants of these
#: -> which.
EAGER_FAULTS: dict[str, tuple[str, ...]] = {
    "nn.functional.multi_margin_loss": ("empty",),
    "_chunk_cat": ("zero-dim",),
    "special_laguerre_polynomial_l": (
        "special",
    ),  # on CUDA devices an infinite degree is a loop that does not end
}

#: Calls in which an internal assertion of torch fails, which is no answer to go by -> its text.
#: index_reduce: the products of 16-bit numbers that overlap in memory.
EAGER_ASSERTS: dict[str, str] = {"index_reduce": "iter.ninputs() == traits::arity"}

#: Rows that are not run -> why.
LEFT_OUT: dict[str, str] = {}
