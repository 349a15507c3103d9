"""Factorizations in CUDA graphs: what they say of a matrix is read after the replay."""

from __future__ import annotations

import pytest
import torch

from tests.support.comparison import assert_equal, assert_same


def log_likelihood(points, values):
    kernel = points @ points.T
    factor = torch.linalg.cholesky(kernel + torch.eye(len(points), device=points.device))
    return values @ torch.cholesky_solve(values[:, None], factor) + factor.diagonal().log().sum()


def test_a_factorization_is_captured(world):
    compiled = world.compile(log_likelihood)
    for _ in range(6):
        points, values = world.randn(8, 3), world.randn(8)
        assert_same(compiled(points, values), log_likelihood(points, values), rtol=1e-4, atol=1e-5)
    assert world.recordings == 1 and world.replays > 2


def test_an_unfit_matrix_raises_in_a_replay_and_the_next_one_does_not(world):
    def factor(matrix):
        return torch.linalg.cholesky(matrix) * 2

    compiled = world.compile(factor)
    fit, unfit = torch.eye(4, device=world.device), -torch.eye(4, device=world.device)
    for _ in range(4):
        assert_equal(compiled(fit), factor(fit))
    replays = world.replays
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match="the input is not positive-definite"):
            compiled(unfit)
        assert_equal(compiled(fit + 1), factor(fit + 1))
    assert world.replays > replays


def test_a_graph_that_also_writes_to_an_input_checks_before_the_write(world):
    """Its capture fails, so it runs plainly: an error leaves the input as eager does."""

    def step(matrix, count):
        result = torch.linalg.cholesky(matrix)
        count += 1
        return result

    compiled = world.compile(step)
    count = torch.zeros((), device=world.device)
    for _ in range(4):
        compiled(torch.eye(4, device=world.device), count)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-torch.eye(4, device=world.device), count)
    assert count == 4 and not world.replays
