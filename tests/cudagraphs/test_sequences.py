"""A sample of the random sequences; many more: ``python -m tests.cudagraphs.sequences --count
1000``.
"""

from __future__ import annotations

import pytest
import torch

from tests.cudagraphs.sequences import generate, run


@pytest.mark.full
def test_sequences_give_eagers_values():
    actual = [run(generate(seed, 30), torch.device("cpu")) for seed in range(4)]
    assert [wrong for wrong, _ in actual if wrong] == []
    assert sum(replays for _, replays in actual) > 40


@pytest.mark.gpu
@pytest.mark.parametrize("start", range(0, 24, 6))
def test_sequences_give_eagers_values_on_a_gpu(start):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    actual = [
        (seed, *run(generate(seed), torch.device("cuda", 0))) for seed in range(start, start + 6)
    ]
    assert [(seed, wrong) for seed, wrong, _ in actual if wrong] == []
    assert sum(replays for _, _, replays in actual) > 60


def test_a_seed_stands_for_one_sequence():
    assert generate(5) == generate(5) != generate(6)
