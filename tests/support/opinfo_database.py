"""PyTorch's database of operators, without what importing it does to the rest of the process.

Out: `op_db`. What always holds: flags of torch.backends may be set afterwards if they could before
(the import forbids it, for PyTorch's own tests).
"""

from __future__ import annotations

import torch

_frozen = torch.backends.flags_frozen()

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402  (what it changes is seen)

if not _frozen:
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

__all__ = ["op_db"]
