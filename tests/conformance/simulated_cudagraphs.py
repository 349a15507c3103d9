"""The backend cudagraphs on its simulated device, for the conformance kit:

python -m tracer_core.testing.conformance --backend tests.conformance.simulated_cudagraphs:backend
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from cudagraphs_backend.plugin import BACKEND
from cudagraphs_backend.state import states
from tests.cudagraphs.simulated import SimulatedDevice
from tracer_core.plugin_api import Backend


def installed() -> tuple[Backend, Callable[[], None]]:
    """Installs the stand-in for the CPU: a backend that runs there, and what takes the stand-in
    away.
    """
    undo = states.install(torch.device("cpu"), SimulatedDevice())
    return dataclasses.replace(BACKEND, available=None, devices=frozenset({"cpu"})), undo


def backend() -> Backend:
    """For the command line: the stand-in stays."""
    return installed()[0]
