"""Functions whose annotations are read when they run: jaxtyping, beartype, torchtyping.

What always holds: annotations are objects here, not texts, because the libraries evaluate them.
"""

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


@FAMILY.inference("jaxtyping")
def shapes_checked_by_beartype() -> Any:
    from beartype import beartype
    from jaxtyping import Float, jaxtyped

    @jaxtyped(typechecker=beartype)
    def attend(
        q: Float[torch.Tensor, "batch queries width"],
        k: Float[torch.Tensor, "batch keys width"],
    ) -> Float[torch.Tensor, "batch queries keys"]:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)

    return attend, lambda: (torch.randn(2, 5, 8), torch.randn(2, 7, 8))


@FAMILY.training("jaxtyping")
def shapes_checked_in_a_module() -> Any:
    from beartype import beartype
    from jaxtyping import Float, Int, jaxtyped

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)
            self.head = torch.nn.Linear(8, 3)

        @jaxtyped(typechecker=beartype)
        def forward(
            self, tokens: Int[torch.Tensor, "batch length"]
        ) -> Float[torch.Tensor, "batch classes"]:
            return self.head(self.table(tokens).mean(1))

    return Net(), lambda: (torch.randint(0, 16, (4, 6)),)


@FAMILY.inference("jaxtyping")
def asks_what_a_tensor_is() -> Any:
    from jaxtyping import Bool, Float

    def run(x: torch.Tensor) -> Any:
        if isinstance(x, Float[torch.Tensor, "rows columns"]):
            x = x.sum(0)
        return x, isinstance(x, Bool[torch.Tensor, "..."])

    return run, lambda: (torch.randn(4, 8),)


@FAMILY.inference("beartype")
def annotated_functions() -> Any:
    from beartype import beartype

    @beartype
    def scaled(x: torch.Tensor, factors: list[float], name: str = "sum") -> dict[str, torch.Tensor]:
        return {name: sum((x * factor for factor in factors), torch.zeros_like(x))}

    return lambda x: scaled(x, [0.5, 1.5]), lambda: (torch.randn(4, 8),)


@FAMILY.inference("torchtyping")
def annotated_with_dimensions() -> Any:
    from torchtyping import TensorType

    def outer(
        x: TensorType["batch", "left"],  # noqa: F821
        y: TensorType["batch", "right"],  # noqa: F821
    ) -> TensorType["batch", "left", "right"]:  # noqa: F821
        return x.unsqueeze(2) * y.unsqueeze(1)

    return outer, lambda: (torch.randn(4, 3), torch.randn(4, 5))
