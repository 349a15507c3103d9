"""Weights of few bits: torchao, bitsandbytes, and what is quantised by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


def _net(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)
    )
    return net.to(dtype).eval()


def _inputs(dtype: torch.dtype = torch.float32) -> Any:
    return lambda: (torch.randn(8, 64, dtype=dtype),)


@FAMILY.inference("torchao", rtol=1e-2, atol=1e-2)
def weights_of_eight_bits() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    net = _net()
    quantize_(net, Int8WeightOnlyConfig())
    return net, _inputs()


@FAMILY.inference("torchao", rtol=1e-2, atol=5e-2)
def dynamic_activations_of_eight_bits() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    net = _net()
    quantize_(net, Int8DynamicActivationInt8WeightConfig())
    return net, _inputs()


@FAMILY.inference("torchao", rtol=2e-2, atol=5e-2)
def weights_of_float8() -> Any:
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    net = _net(torch.bfloat16)
    quantize_(net, Float8WeightOnlyConfig())
    return net, _inputs(torch.bfloat16)


@FAMILY.inference("torchao", rtol=1e-2, atol=1e-2)
def affine_quantisation_primitives() -> Any:
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    def run(x: torch.Tensor) -> Any:
        block = (1, 32)
        scale, zero = choose_qparams_affine(x, MappingType.ASYMMETRIC, block, torch.uint8)
        quantised = quantize_affine(x, block, scale, zero, torch.uint8)
        return dequantize_affine(quantised, block, scale, zero, torch.uint8), scale

    return run, _inputs()


@FAMILY.training("torchao", rtol=1e-2, atol=1e-2)
def fake_quantisation_while_training() -> Any:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    net = _net().train()
    weight = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    quantize_(net, QATConfig(weight_config=weight, step="prepare"))
    return net, _inputs()


@FAMILY.inference("torchao", rtol=1e-2, atol=1e-2)
def semi_sparse_masks() -> Any:
    from torchao.sparsity import WandaSparsifier

    net = _net()
    config = [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}]
    sparsifier = WandaSparsifier(sparsity_level=0.5)
    sparsifier.prepare(net, config)
    net(torch.randn(8, 64))
    sparsifier.step()
    sparsifier.squash_mask()
    return net, _inputs()


@FAMILY.inference("bitsandbytes", rtol=1e-2, atol=1e-2)
def blockwise_codes_there_and_back() -> Any:
    import bitsandbytes.functional as bnb

    def run(x: torch.Tensor) -> Any:
        codes, state = bnb.quantize_blockwise(x)
        return codes, bnb.dequantize_blockwise(codes, state)

    return run, _inputs()


@FAMILY.inference("bitsandbytes", rtol=1e-2, atol=1e-2)
def linear_layer_of_four_bits() -> Any:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(64, 32, compute_dtype=torch.float32, quant_type="nf4")
    layer.load_state_dict(torch.nn.Linear(64, 32).state_dict())
    return layer.to("cpu").eval(), _inputs()


@FAMILY.inference("bitsandbytes", rtol=1e-2, atol=5e-2)
def linear_layer_of_eight_bits() -> Any:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear8bitLt(64, 32, has_fp16_weights=False)
    layer.load_state_dict(torch.nn.Linear(64, 32).state_dict())
    return layer.to("cpu").eval(), _inputs()


@FAMILY.inference("torch", rtol=1e-2, atol=1e-1)
def dynamically_quantised_linear_layers() -> Any:
    net = copy.deepcopy(_net())
    return torch.ao.quantization.quantize_dynamic(
        net, {torch.nn.Linear}, dtype=torch.qint8
    ), _inputs()


@FAMILY.inference("torch", rtol=1e-2, atol=1e-2)
def int4_weights_packed_by_hand() -> Any:
    weight = torch.randint(0, 16, (32, 64), dtype=torch.uint8)
    packed, scale = weight[:, ::2] << 4 | weight[:, 1::2], torch.rand(32, 1) + 0.1

    def run(x: torch.Tensor) -> torch.Tensor:
        high, low = packed >> 4, packed & 0xF
        full = torch.stack([high, low], dim=-1).flatten(1).to(x.dtype)
        return x @ ((full - 8) * scale).T

    return run, _inputs()
