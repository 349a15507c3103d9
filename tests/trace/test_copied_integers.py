"""Large integers in copies of dictionaries and objects: identities, such as hashes, which differ
between calls and processes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.comparison import assert_same
from tests.support.counting_backend import CountingBackend

LARGE = 2**40


class Config:
    def __init__(self, fingerprint: int) -> None:
        self.scale, self.fingerprint = 2, fingerprint


def _stored_in_copy(x: torch.Tensor, config: Config) -> Any:
    own = copy.deepcopy(config)
    return x * own.scale, own.__dict__, copy.deepcopy(vars(config))


def _deleted(x: torch.Tensor, config: Config) -> Any:
    own = copy.deepcopy(vars(config))
    del own["fingerprint"]
    return x + own["scale"], own


@pytest.mark.parametrize("program", [_stored_in_copy, _deleted])
def test_is_no_guard_where_the_program_does_not_look_at_it(program: Any) -> None:
    compiled = tracer_core.compile(program, backend=(backend := CountingBackend()))
    for i in range(4):
        config, x = Config(LARGE + i), torch.ones(3)
        assert_same(compiled(x, config), program(x, config))
    assert backend.n_graphs == 1


USES: dict[str, Any] = {
    "arithmetic": lambda x, own: x * (own["fingerprint"] % 7),
    "an operand of a tensor": lambda x, own: x.double() + own["fingerprint"],
    "an argument of a tensor": lambda x, own: torch.full((2,), own["fingerprint"]) + x.sum().long(),
    "an argument by name": lambda x, own: torch.add(x.double(), other=own["fingerprint"]),
    "inside a list": lambda x, own: torch.tensor([own["fingerprint"], 1]),
    "compared": lambda x, own: x + 1 if own["fingerprint"] == LARGE + 1 else x - 1,
    "in order": lambda x, own: x + 1 if own["fingerprint"] > LARGE + 1 else x - 1,
    "truth": lambda x, own: x + 1 if own["fingerprint"] else x - 1,
    "text": lambda x, own: (x + 1, f"{own['fingerprint']:x}", str(own["fingerprint"])),
    "json": lambda x, own: (x + 1, json.dumps(own)),
    "tuples": lambda x, own: x + 1 if (1, own["fingerprint"]) == (1, LARGE + 1) else x - 1,
    "a key": lambda x, own: x + {LARGE + 1: 1}.get(own["fingerprint"], 2),
    "dictionaries": lambda x, own: x + 1 if own == {"scale": 2, "fingerprint": LARGE + 1} else x - 1,
    "type": lambda x, own: x + 1 if type(own["fingerprint"]) is int else x - 1,
    "a shape": lambda x, own: x.new_zeros(own["fingerprint"] - LARGE + 1),
    "an index": lambda x, own: x[own["fingerprint"] - LARGE],
    "sorted": lambda x, own: (x + 1, sorted([own["fingerprint"], LARGE + 1])),
    "min": lambda x, own: x + (min(own["fingerprint"], LARGE + 1) - LARGE),
    "hash": lambda x, own: x + (hash(own["fingerprint"]) - LARGE),
    "bits": lambda x, own: x + (own["fingerprint"].bit_length() + (own["fingerprint"] >> 38)),
    "a copy of the copy": lambda x, own: (x + 1, copy.deepcopy(own), dict(own), own.copy()),
    "across a graph break": lambda x, own: (
        x + 1, tracer_core.graph_break(), own["fingerprint"] + 1, own
    ),
    "values": lambda x, own: (x + 1, list(own.values()), max(own.values())),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_is_guarded_where_the_program_uses_it(use: str) -> None:
    def program(x: torch.Tensor, config: Config) -> Any:
        return USES[use](x, copy.deepcopy(vars(config)))

    compiled = tracer_core.compile(program)
    for fingerprint in (LARGE, LARGE + 1, LARGE + 2, LARGE):
        x = torch.ones(3)
        assert_same(compiled(x, Config(fingerprint)), program(x, Config(fingerprint)))


def test_is_the_programs_object() -> None:
    def program(x: torch.Tensor, table: dict[str, int]) -> Any:
        return x + 1, copy.deepcopy(table)

    compiled, table = tracer_core.compile(program), {"fingerprint": LARGE + 5}
    for _ in range(3):
        assert compiled(torch.ones(2), table)[1]["fingerprint"] is table["fingerprint"]
        table["fingerprint"] += 1
