"""Template strings (Python 3.14): their classes, which nothing is an instance of before."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 14):
    from string.templatelib import Interpolation, Template
else:

    class Interpolation:
        """Stands for the class of Python 3.14."""

    class Template:
        """Stands for the class of Python 3.14."""


INTERPOLATION: Any = Interpolation
TEMPLATE: Any = Template
#: The fields of an interpolation, in the order of the arguments that make one.
FIELDS = ("value", "expression", "conversion", "format_spec")
