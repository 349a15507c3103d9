"""Rows of the native effects table, by library. Importing this package fills `effects.EFFECTS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
