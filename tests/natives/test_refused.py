"""Natives that are given what they refuse: the compiled program raises what Python and torch raise."""

from __future__ import annotations

import datetime
import threading

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import tracer_core

LOCK = type(threading.Lock())
CALLS = {
    "subclass of no tensor": lambda x: torch.Tensor._make_subclass(datetime.timedelta(2), ""),
    "subclass of a text": lambda x: torch.Tensor._make_subclass(torch.nn.Parameter, ""),
    "a lock's type": lambda x: LOCK().acquire(),
    "a mesh's question of a tensor": lambda x: DeviceMesh.mesh_dim_names.fget(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    def program(x):
        try:
            actual = CALLS[name](x)
        except Exception as error:
            actual = type(error), str(error)
        return x + 1, actual

    compiled, x = tracer_core.compile(program), torch.ones(2)
    for _ in range(2):
        result, results = compiled(x)
        assert torch.equal(result, x + 1)
        assert results == program(x)[1]
