"""torch.nn.TransformerEncoder, which in eager mode puts a padded batch into a nested tensor."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import breaks, special
from tracer_core.torch_private.names import names
from tracer_core.trace.tracer import Tracer


@special(*names("nn.TransformerEncoder.forward"))
def encode(
    tracer: Tracer,
    encoder: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: Any = None,
) -> Any:
    """Interprets the forward itself where no nested tensor can come up; where one does if the mask
    is aligned to the left, a polyfill that has the same result for either mask."""
    if src_key_padding_mask is not None and mask is None:
        inputs = [encoder, src, src_key_padding_mask]
        if tracer.calls.call_value(polyfills.may_pack, inputs, {}):
            if not tracer.calls.call_value(polyfills.packs_by_identity, inputs, {}):
                return tracer.calls.prepare(polyfills.encode_nested, [*inputs, is_causal], {})
            return tracer.calls.prepare(polyfills.encode_packed, [*inputs, is_causal], {})
    inputs = [encoder, src, mask, src_key_padding_mask, is_causal]
    forward: Any = torch.nn.TransformerEncoder.forward
    return tracer.calls.frame_of(forward, inputs, {})


breaks("tensor_subclass", "it makes a nested tensor", [polyfills.encode_eagerly])
