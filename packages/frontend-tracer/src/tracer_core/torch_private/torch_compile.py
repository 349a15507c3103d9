"""What calls of torch.compiler's functions have left in torch.compile's own modules.

They are read where the program has imported them, and never imported.
"""

from __future__ import annotations

import sys
from typing import Any

#: The module that holds the stance.
EVAL_FRAME = "torch._dynamo.eval_frame"
_TRACE_RULES = "torch._dynamo.trace_rules"
#: The module of torch's `graph_break`.
DECORATORS = "torch._dynamo.decorators"
#: Environment variables that switch torch.compile off.
OFF_VARIABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def stance_of_torch() -> str:
    """Returns what `torch.compiler.set_stance` has set."""
    stance: Any = getattr(sys.modules.get(EVAL_FRAME), "_stance", None)
    return getattr(stance, "stance", "default")


def is_in_set(name: str, function: object) -> bool:
    """Returns whether torch.compile has noted a function in one of its sets."""
    noted = getattr(sys.modules.get(_TRACE_RULES), name, None)
    return id(function) in (getattr(noted, "function_ids", None) or ())
