"""Decomposes PyTorch's fused attention layers into linear, attention and norms, which this backend
compiles.

`_native_multi_head_attention` and `_transformer_encoder_layer_fwd` are the fast paths of
nn.MultiheadAttention and nn.TransformerEncoderLayer (evaluation without gradients). Run eagerly,
twelve such layers would cut a graph into thirteen. Masks, returned weights and nested tensors are
left to the operator (NotImplemented). GELU is the exact one, as the module says; PyTorch's operator
uses the tanh approximation on CUDA (differs by up to 5e-4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core.plugin_api import operators

F = torch.nn.functional
aten = operators("aten")


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Returns (result, None); NotImplemented where the operator itself must run."""
    if mask is not None or need_weights or query is not key or key is not value or query.dim() != 3:
        return NotImplemented
    batch, length, _ = query.shape
    packed = F.linear(query, qkv_weight, qkv_bias)
    packed = packed.reshape(batch, length, 3, num_head, embed_dim // num_head)
    q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
    attended = F.scaled_dot_product_attention(q, k, v)
    joined = attended.transpose(1, 2).reshape(batch, length, embed_dim)
    return F.linear(joined, proj_weight, proj_bias), None


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if mask is not None or src.dim() != 3:
        return NotImplemented

    def first(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    x = first(src) if norm_first else src
    x, _ = multi_head_attention(
        x,
        x,
        x,
        embed_dim,
        num_heads,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        need_weights=False,
    )
    x = (x + src).contiguous()  # the operator adds into its matmuls' results
    x = x if norm_first else first(x)
    wide = F.linear(second(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    wide = F.gelu(wide) if use_gelu else F.relu(wide)
    x = x + F.linear(wide, ffn_weight_2, ffn_bias_2)
    return x if norm_first else second(x)


#: Operator -> its decomposition.
ATTENTION_LAYERS: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
