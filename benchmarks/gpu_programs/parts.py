"""`ProgramParts` that several programs share: image classification and losses of transformers.

In: a module and sizes. Out: `ProgramParts`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_programs.program import Batch, ProgramParts


def image_inference(module: Any, rows: int, size: int) -> ProgramParts:
    """The module's output for images of three channels."""
    import torch

    estimate_statistics(module, torch.randn(4, 3, 96, 96))
    return ProgramParts(module, lambda number: (torch.randn(rows, 3, size, size),))


def estimate_statistics(module: Any, *inputs: Any) -> None:
    """Sets the running statistics of batch norms to those of a batch, if the module has any.

    With those of a new module, activations of random weights shrink from layer to layer to nothing.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def image_training(module: Any, rows: int, size: int, classes: int = 1000) -> ProgramParts:
    """The cross-entropy of the module's logits for images of three channels."""
    import torch
    import torch.nn.functional as F

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, 3, size, size), torch.randint(0, classes, (rows,))

    def loss(run: Any, images: Any, labels: Any) -> Any:
        return F.cross_entropy(run(images), labels)

    return ProgramParts(module, make_batch, loss)


def language_training(module: Any, rows: int, length: int) -> ProgramParts:
    """The loss of a language model of transformers for tokens of its vocabulary."""
    import torch

    classes = module.config.vocab_size
    return ProgramParts(
        module,
        lambda number: (torch.randint(0, classes, (rows, length)),),
        loss_of_next_tokens,
    )


def loss_of_next_tokens(run: Any, tokens: Any) -> Any:
    """The loss that a language model of transformers computes for its own inputs."""
    return run(input_ids=tokens, labels=tokens).loss


def node_classification(module: Any, make_batch: Any) -> ProgramParts:
    """The cross-entropy of a graph network's logits. make_batch: labels are the last of a batch."""
    import torch.nn.functional as F

    def loss(run: Any, *batch: Any) -> Any:
        *inputs, labels = batch
        return F.cross_entropy(run(*inputs), labels)

    return ProgramParts(module, make_batch, loss)
