"""Every fault still applies to the source; two of them are planted and found. The rest: ``nox -s
mutation_tests``.
"""

from __future__ import annotations

import os

import pytest

from tests.mutation_tests.__main__ import find
from tests.mutation_tests.faults import FAULTS
from tests.mutation_tests.plant import planted, source_root


@pytest.mark.skipif("MUTATION" in os.environ, reason="a fault is planted")
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_applies_to_the_source(name):
    fault = FAULTS[name]
    compile(planted(fault, (source_root() / fault.file).read_text()), fault.file, "exec")


def test_there_are_faults_in_every_area():
    areas = {fault.area for fault in FAULTS.values()}
    assert areas == {"guards", "replay", "aliasing", "segments", "rebuild", "effects"}
    assert len(FAULTS) >= 30


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["lengths are not guarded", "the last item added to a list is lost"]
)
def test_a_planted_fault_is_found(name):
    actual, _ = find(FAULTS[name])
    assert actual
