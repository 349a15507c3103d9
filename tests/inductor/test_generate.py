"""generate() of transformers' models through inductor: eager's tokens, at most four compiles."""

from __future__ import annotations

import pytest

from tests.support.text_generation import generated, left_padded, model_of, prompt

pytestmark = pytest.mark.sweep(keep=1)

CASES = [
    ("gpt2", "dynamic", 3), ("gpt2", "static", 2), ("llama", "dynamic", 3), ("llama", "static", 2),
    ("mistral", "static", 3),
]  # fmt: skip


#: Each model and each kind of cache is in the others.
PATIENT = {("llama", "dynamic"), ("gpt2", "static")}


@pytest.mark.parametrize(
    ("name", "cache", "graphs"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case[:2] in PATIENT else [])
        for case in CASES
    ],
)
def test_64_tokens(name, cache, graphs):
    call = {"inputs": prompt(1, 7), "cache_implementation": cache}
    assert generated(model_of(name), 64, [call, call], "inductor") == [graphs, graphs]


def test_padded_on_the_left():
    assert generated(model_of("gpt2"), 16, [left_padded(3, 8)] * 2, "inductor") == [3, 3]
