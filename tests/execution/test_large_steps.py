"""A whole training step of a model with 2,000 parameters."""

from __future__ import annotations

import pytest

from tests.execution.test_steps_at_size import X, step_of
from tests.support.eager_training import trained


@pytest.mark.full
def test_two_thousand_parameters_settle_after_two_captures() -> None:
    """clip_grad_norm_ alone walks through a thousand modules, for more instructions than a loop of
    eager Python may take."""
    trained(lambda: step_of(1000, "AdamW"), *((X,),) * 3, graphs=2)
