"""The environment variables of the backend `inductor`."""

from __future__ import annotations

from tracer_core.plugin_api import Variable, count

_ONLY = "Fuses only so many operators of each graph, to bisect a wrong result."
FUEL = Variable("TRACER_FUEL", count, "a number of fusions", _ONLY)
