"""The zoo: small models of distinct architectures, with random weights and nothing downloaded.

In: a name of `ZOO`. Out: an `Animal`, whose `module()` and `inputs(number)` are the same for the
same seed. What always holds: the second call's inputs have the first's shapes and other values, so
that a value which was baked into a graph shows.
"""

from __future__ import annotations

from benchmarks.zoo_models import multimodal, text, timm_models, torchvision_models
from benchmarks.zoo_models.animal import Animal

__all__ = ["ZOO", "Animal"]

ZOO: dict[str, Animal] = {
    animal.name: animal
    for animal in (
        *text.ANIMALS,
        *multimodal.ANIMALS,
        *timm_models.ANIMALS,
        *torchvision_models.ANIMALS,
    )
}
