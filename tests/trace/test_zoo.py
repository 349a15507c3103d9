"""A sample of the zoo (benchmarks/zoo_models), chosen anew by a seed: as `python -m benchmarks zoo`
checks all of it.
"""

from __future__ import annotations

import os
import random

import pytest

from benchmarks import zoo
from benchmarks.zoo_models import ZOO

#: Small models that take about a second each, and of them a sample.
_QUICK = (
    "bert albert electra mpnet roformer fnet gpt2 gptj opt bloom llama mistral qwen2 qwen3_moe gemma2 phi3 falcon stablelm"
    " mamba2 t5 bart vit deit beit dinov2 swin convnext clip siglip wav2vec2 layoutlm patchtst perceiver tv_resnet18"
    " tv_squeezenet1_1 tv_shufflenet_v2_x0_5 tv_mnasnet0_5 tv_mobilenet_v2 timm_mobilenetv3_small_050 timm_regnetx_002"
    " timm_ghostnet_050 timm_dla46_c timm_poolformer_s12"
).split()
_SEED = int(os.environ.get("ZOO_SEED", "3"))
_SAMPLE = sorted(random.Random(_SEED).sample(_QUICK, 8))


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    zoo.import_libraries()


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", _SAMPLE)
def test_a_model_of_the_zoo_is_one_graph_and_equal(name: str, train: bool) -> None:
    facts = zoo.check_mode(name, train)
    assert facts["equal"], facts["error"]
    assert facts["graphs"] == 1, f"ZOO_SEED={_SEED}: {facts['breaks']}"
    assert facts["breaks"] == facts["recompiles"] == [] and facts["graphs_later"] == 0


def test_every_model_that_must_break_says_why() -> None:
    assert len(ZOO) >= 85
    assert len({animal.name for animal in ZOO.values()}) == len(ZOO)
    assert {animal.library for animal in ZOO.values()} == {"transformers", "timm", "torchvision"}
    assert sum(bool(animal.breaks) for animal in ZOO.values()) <= 0.03 * len(ZOO)
