"""Checks what a machine needs to compile for CUDA devices, and sets Triton's cache folder.

Returns Triton's target for the current device, or raises a RequirementError that says what is missing
and what to do. Each check runs once per process. Triton's cache is a folder that this user may
write to: from Triton's own settings if the user set any, else beside the backend's compiled code.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import Any

import torch

from tracer_core.plugin_api import RequirementError, logger, private_folder

#: The oldest Triton whose kernels are tested, as in pyproject.toml, and the oldest devices that it
#: makes code for.
MIN_TRITON = (3, 6)
MIN_CAPABILITY = (7, 0)

#: The user's settings for where Triton's files go.
_SETTINGS = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_CACHE_MANAGER")

WITHOUT = "or run these graphs without Triton: backend='cudagraphs' or 'eager'"


def capability(device: int | None = None) -> int:
    """Returns the compute capability of a device, or of the current one: 80, 90, ... Does not
    import Triton. Raises RequirementError (stage "toolchain")."""
    if torch.version.hip is not None:
        raise _missing(
            f"torch {torch.__version__} is for AMD GPUs; kernels are made for NVIDIA's: use"
            " backend='eager'"
        )
    keep_triton_files_here()
    major, minor = _demand_device(torch.cuda.current_device() if device is None else device)
    return 10 * major + minor


def active_target() -> Any:
    """Returns Triton's target for the current device. Raises RequirementError (stage "toolchain")."""
    capability()
    demand_triton()
    return _driver().active.get_current_target()


@functools.cache
def demand_triton() -> None:
    """Raises RequirementError (stage "toolchain") where no Triton can be imported that is new enough."""
    try:
        import triton  # heavy: the point of asking
    except ImportError as error:
        raise _missing(
            f"graphs on CUDA devices need Triton, which cannot be imported ({error}): "
            f"pip install 'triton>={_dotted(MIN_TRITON)}', {WITHOUT}"
        ) from error
    items = tuple(map(int, re.findall(r"\d+", triton.__version__)[:2]))
    if items < MIN_TRITON:
        raise _missing(
            f"Triton {triton.__version__} is too old: pip install 'triton>={_dotted(MIN_TRITON)}'"
            f" (torch 2.11 and later come with it), {WITHOUT}"
        )


@functools.cache
def _demand_device(number: int) -> tuple[int, int]:
    result = torch.cuda.get_device_capability(number)
    if result < MIN_CAPABILITY:
        raise _missing(
            f"{torch.cuda.get_device_name(number)} has compute capability {_dotted(result)}; Triton"
            f" makes code for {_dotted(MIN_CAPABILITY)} and newer: use backend='cudagraphs' or"
            " 'eager'"
        )
    return result


@functools.cache
def _driver() -> Any:
    """Returns Triton's access to the driver: a C extension, which Triton builds if its cache has
    none."""
    from triton.runtime import driver  # heavy: triton

    try:
        driver.active
    except Exception as error:
        raise _missing(f"Triton cannot reach the GPU: {_reason(error)}; {WITHOUT}") from error
    return driver


def _reason(error: Exception) -> str:
    """Returns what an error of Triton's start means for the user."""
    if isinstance(error, subprocess.CalledProcessError):
        return (
            f"the C compiler failed on its access to the driver (exit code {error.returncode}, its"
            " words are above); most often Python's headers are missing: apt install python3-dev,"
            " or dnf install python3-devel"
        )
    text = str(error).strip()
    if "C compiler" in text:
        return (
            "it builds its access to the driver by a C compiler, and there is none: apt install"
            " gcc, or set CC to one"
        )
    if isinstance(error, OSError):
        return f"{text}: set TRITON_CACHE_DIR to a folder of your own"
    return f"{type(error).__name__}: {text}"


def keep_triton_files_here() -> None:
    """Points Triton to a folder beside the backend's compiled code, unless the user has chosen one."""
    if any(os.environ.get(name) for name in _SETTINGS):
        return
    folder, problem = private_folder("triton")
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    if problem is not None:
        logger().warning(
            "Triton's kernels are compiled again in each process (no disk cache: %s)", problem
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _missing(what: str) -> RequirementError:
    return RequirementError("inductor", "toolchain", what)
