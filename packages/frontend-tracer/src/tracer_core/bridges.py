"""Our backends for torch's own compiler.

In: the name of one of our backends. Out: a function ``(gm, example_inputs, **kwargs)`` that torch's
compiler can call; packages publish it as ``tracer_<name>`` in the entry-point group
``torch_dynamo_backends``, with the value ``tracer_core.bridges:tracer_<name>``. (The other way,
their backends for us: `tracer_core.registry.torch_style`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracer_core import plugin_api
from tracer_core.contract.backend import Backend
from tracer_core.registry.torch_style import PREFIX

if TYPE_CHECKING:
    import torch


def torch_backend_of(backend: str | Backend) -> Callable[..., Callable[..., Sequence[Any]]]:
    """One of our backends (its name, or the `Backend`) as torch's compiler calls a backend.

    The result takes ``(gm, example_inputs, mode=None, options=None)`` and returns
    ``callable(*tensors) -> sequence``. Errors: those of `plugin_api.compile_graph`.
    """
    name = backend if isinstance(backend, str) else backend.name

    def compile_for_torch(
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Any = None,
    ) -> Callable[..., Sequence[Any]]:
        graph = plugin_api.compile_graph(
            gm, list(example_inputs), backend, mode=mode, options=options
        )
        run = graph.run

        def call(*inputs: Any) -> Sequence[Any]:
            return run(list(inputs))

        return call

    compile_for_torch.__name__ = compile_for_torch.__qualname__ = PREFIX + name.replace("-", "_")
    compile_for_torch.__doc__ = f"tracer_core's backend {name!r} for torch.compile."
    return compile_for_torch


def __getattr__(attribute: str) -> Any:
    """``bridges.tracer_<name>``: what the entry points of our backends name."""
    if attribute.startswith(PREFIX) and len(attribute) > len(PREFIX):
        return torch_backend_of(attribute.removeprefix(PREFIX))
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
