"""Matmuls and linear algebra."""

from __future__ import annotations

from tracer_core.ops.traits import OpFamily, Trait

FAMILIES = (
    OpFamily("mm.default addmm.default bmm.default baddbmm.default",
             Trait.MATMUL | Trait.PRODUCT | Trait.READS_ALL),
    OpFamily("convolution.default", Trait.PRODUCT | Trait.READS_ALL),
    OpFamily("cholesky cholesky_inverse cholesky_solve eig eigh geqrf inverse logdet lstsq lu"
             " lu_factor lu_solve lu_unpack matrix_exp matrix_power ormqr pinverse qr slogdet svd"
             " symeig triangular_solve nuclear_norm", Trait.RAISES_BY_VALUE),
    OpFamily("linalg_eig.default _linalg_eigvals.default", Trait.BLOCKS, "it runs on the host"),
    OpFamily("linalg_lstsq.default", Trait.BLOCKS, "it waits for the device"),
    OpFamily("_linalg_check_errors.default", Trait.BLOCKS, "it reads the errors on the host"),
    # Of all operators whose names begin with ``linalg_`` (`table.raises_by_value`), these take any
    # matrix; some norms do not (`fx_capture.may_raise`).
    OpFamily("linalg_vector_norm linalg_matmul linalg_multi_dot linalg_cross linalg_diagonal"
             " linalg_vecdot linalg_norm", Trait.TAKES_ANY_MATRIX),
)  # fmt: skip
