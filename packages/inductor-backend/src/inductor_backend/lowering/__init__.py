"""Lowerings: ATen operators to loop IR, one module an operator family, found through `registry`."""

from inductor_backend.lowering import (  # noqa: F401  (importing registers)
    adaptive_pools,
    conv_backward,
    conv_pool,
    creation,
    indexing,
    losses,
    matmul,
    norm_backward,
    normalization,
    packed,
    padding,
    pointwise,
    pools,
    reduction,
    sampling,
    scan,
    scatter,
    special,
    updates,
    views,
)
