"""Operators that compute each element from the operands' elements at its place."""

from __future__ import annotations

from tracer_core.ops.traits import OpFamily, Trait

FAMILIES = (
    OpFamily("add.Tensor add.Scalar sub.Tensor mul.Tensor mul.Scalar logical_not.default"
             " logical_and.default bitwise_not.default bitwise_and.Tensor bitwise_or.Tensor"
             " masked_fill.Scalar", Trait.CHEAP),
    OpFamily("neg.default abs.default maximum.default minimum.default", Trait.CHEAP | Trait.EXACT),
    OpFamily("relu.default clamp.default clamp_min.default clamp_max.default", Trait.EXACT),
    OpFamily("where.self where.ScalarSelf native_dropout_backward.default", Trait.CHEAP | Trait.EXACT),
    # A comparison with a number is not a decision: it jumps where few values are.
    OpFamily("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", Trait.COMPARES | Trait.CHEAP),
    OpFamily("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor",
             Trait.COMPARES | Trait.CHEAP | Trait.DECIDES),
    OpFamily("copy masked_fill where copysign setitem eq ne lt le gt ge", Trait.POINTWISE),
    OpFamily("iadd isub imul itruediv iand ior ixor ilshift irshift",
             Trait.POINTWISE | Trait.AUGMENTS),
    OpFamily("ifloordiv imod", Trait.POINTWISE | Trait.AUGMENTS | Trait.DIVIDES),
    OpFamily("ipow", Trait.POINTWISE | Trait.AUGMENTS | Trait.RAISES_FOR_INTEGERS),

    OpFamily("div divide floor_divide remainder fmod floordiv mod rfloordiv rmod", Trait.DIVIDES),
    OpFamily("gcd lcm pow", Trait.RAISES_FOR_INTEGERS),
)  # fmt: skip
