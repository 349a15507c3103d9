"""Rows of the native effects table, by library. Importing this package fills `effects.EFFECTS`."""

import importlib
import pkgutil

from tracer_core.native_effects.effects import add_rest

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
add_rest()
