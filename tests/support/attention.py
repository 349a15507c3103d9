"""Programs around flex_attention."""

from __future__ import annotations

from torch.nn.attention.flex_attention import AuxRequest, flex_attention


def attend_by(score_mod, mask, scale=None):
    def attend(q, k, v):
        out, aux = flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True, scale=scale,
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        return out, aux.lse

    return attend
