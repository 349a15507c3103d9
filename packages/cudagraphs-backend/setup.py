"""In a checkout, the package installs the core that stands beside it: tracer-core is not on an
index yet.
"""

from pathlib import Path
from typing import Any

import setuptools

CORE = Path(__file__).resolve().parents[1] / "frontend-tracer"


class Distribution(setuptools.Distribution):
    """The distribution of pyproject.toml, whose requirement of the core says where it is."""

    def parse_config_files(self, *args: Any, **kwargs: Any) -> None:
        super().parse_config_files(*args, **kwargs)
        if (CORE / "pyproject.toml").exists():
            here = f"tracer-core @ {CORE.as_uri()}"
            asked = [
                here if item.startswith("tracer-core") else item for item in self.install_requires
            ]
            self.install_requires = self.metadata.install_requires = asked


setuptools.setup(distclass=Distribution)
