"""How far an index moves with a loop, also through divisions and remainders."""

from __future__ import annotations

from inductor_backend.ir.index_expr import Index, reshape, variables


def test_steps_of_a_reshaped_index():
    """[4, 6] read as [3, 8]: neighbours lie together, rows eight apart."""
    rows, columns = reshape((4, 6), (3, 8), variables((3, 8)))
    flat = rows * 6 + columns
    assert (flat.step(0), flat.step(1)) == (8, 1)


def test_steps_of_a_permuted_and_reshaped_index():
    """[2, 3, 4] permuted to [2, 4, 3] and read as [2, 12]: the second element is the next row's."""
    a, b = variables((2, 12))
    _, middle, last = reshape((2, 4, 3), (2, 12), (a, b))
    flat = a * 12 + last * 4 + middle
    assert flat.coefficient(1) == 0 and flat.step(1) == 4 and flat.step(0) == 12
    assert (flat + 5).origin() == 5 and Index().step(0) == 0
