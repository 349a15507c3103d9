"""Builds the hand-written CPU kernels (kernels/cpu/*.cpp) on demand and exposes them to Python.

Kernels that belong together are one library, a *family*, built once per machine when a graph first
needs it. A translation unit that several families share is compiled once. `prepare` builds in the
background, which affects time only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from inductor_backend.runtime.cpp.build import Library, build, load_binary
from inductor_backend.runtime.cpp.objects import Unit
from inductor_backend.runtime.cpp.toolchain import processor
from inductor_backend.torch_private import has_tiles
from tracer_core.plugin_api import BackendError, cpu_level

FOLDER = Path(__file__).parent / "cpu"

#: Activations that kernels fuse, by name: the numbers of kernels/cpu/tensors.h.
EPILOGUES = {
    "none": 0, "relu": 1, "gelu_erf": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6,
    "hardswish": 7, "relu6": 8,
}  # fmt: skip

_GEMM = ("gemm", "epilogue_store", "dot", "panel", "epilogues")
_BLOCKS = tuple(f"blocks VECTORS={n}" for n in (4, 3, 2, 1))

#: Floats in names of launchers -> their types in C++.
_FLOATS = {"float": "float", "bf16": "tc_bf16", "half": "tc_half"}

#: Integers that weights are, in names of launchers -> definitions.
_INTEGERS = {
    "int8": "WEIGHT=int8_t",
    "uint8": "WEIGHT=uint8_t",
    "nibbles": "WEIGHT=uint8_t NIBBLES",
}

#: Half the harmonic mean of rows and columns from which packing both into tiles pays, and the least terms
#: (kernels/cpu/tiles.cpp, where the processor has tiles).
TILED_SIDE, TILED_DEPTH = 128, 64
#: The same where the second operand was packed before, and the rows beyond which that saves nothing.
PACKED_TILED_SIDE, PACKED_TILED_ROWS = 100, 512
_TILES = f"tiles TILED_SIDE={TILED_SIDE} TILED_DEPTH={TILED_DEPTH}"

#: family -> (its units: file and preprocessor definitions; its launchers and their argument counts)
FAMILIES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "linear": (("linear", *_GEMM), {"run_linear": 14}),
    "blocked": (
        ("blocked", _TILES, "epilogue_store", "epilogues"),
        {"run_blocked": 16, "run_conv1x1": 10, "run_conv1x1_weight": 7, "pack_tiles": 6},
    ),
    "convolution": (("convolution", "unfold", *_GEMM), {"run_convolution": 25}),
    "convolution_backward": (
        ("convolution_backward", "unfold", *_GEMM),
        {"run_convolution_backward_input": 21, "run_convolution_backward_weight": 21},
    ),
    "few_rows_bf16": (
        ("few_rows WEIGHT=tc_bf16 RUN=run_few_rows_bf16 GROUPED=run_grouped_bf16", "epilogues"),
        {"run_few_rows_bf16": 13, "run_grouped_bf16": 14},
    ),
    "few_rows_half": (
        ("few_rows WEIGHT=tc_half RUN=run_few_rows_half", "epilogues"),
        {"run_few_rows_half": 13},
    ),
    **{
        f"few_rows_{element}_{integer}": (
            (
                f"few_rows ELEMENT={name} {defined} RUN=run_few_rows_{element}_{integer}",
                "epilogues",
            ),
            {f"run_few_rows_{element}_{integer}": 25},
        )
        for element, name in _FLOATS.items()
        for integer, defined in _INTEGERS.items()
    },
    "rng": (("rng",), {"run_bernoulli": 4}),
    "pack": (
        ("pack",),
        {
            "run_pack": 9,
            "pack_depthwise": 4,
            "pack_conv_small_groups": 5,
            "pack_conv_few_channels": 6,
        },
    ),
    "dense": (("dense RUN=run_packed", _BLOCKS[0], "epilogues"), {"run_packed": 28}),
    "dense_any": (("dense RUN=run_packed_any", *_BLOCKS, "epilogues"), {"run_packed_any": 28}),
    "winograd": (
        ("winograd", _BLOCKS[0], _BLOCKS[2], "epilogues"),
        {"run_winograd": 23, "pack_winograd": 7},
    ),
    "winograd_planes": (("winograd_planes", "panel"), {"run_winograd_planes": 16}),
    "lstm": (("lstm", _BLOCKS[0]), {"run_lstm": 9}),
    "attention": (("attention",), {"run_attention": 30}),
    **{
        f"decoding_attention_{name}": (
            (f"decoding_attention WEIGHT={kind} RUN=run_decoding_attention_{name}",),
            {f"run_decoding_attention_{name}": 33},
        )
        for name, kind in _FLOATS.items()
    },
    **{
        f"depthwise_{n}": (
            (f"depthwise WIDTH={n} RUN=run_depthwise_{n}", "epilogues"),
            {f"run_depthwise_{n}": 23},
        )
        for n in (3, 5, 7)
    },
    **{
        f"conv_few_channels_{n}": (
            (f"conv_few_channels STRIDE={n} RUN=run_conv_few_channels_{n}", "epilogues"),
            {f"run_conv_few_channels_{n}": 24},
        )
        for n in (1, 2, 4)
    },
    **{
        f"{kind}_{n}": (
            (f"{kind} CHANNELS={n} RUN=run_{kind}_{n}", "epilogues"),
            {f"run_{kind}_{n}": 24},
        )
        for kind, sizes in (("conv_small_groups", (2, 4, 8)), ("grouped", (8, 16, 32)))
        for n in sizes
    },
}

#: launcher -> its family
FAMILY_OF = {
    launcher: family for family, (_, launchers) in FAMILIES.items() for launcher in launchers
}

_restored: dict[str, Library] = {}
#: Libraries that stay mapped, because generated modules hold addresses in them.
_addressed: dict[str, Library] = {}
_building: dict[str, threading.Lock] = {}


def _new_process() -> None:
    """Replaces locks in a forked child: other threads of the parent may have held them."""
    _building.update((family, threading.Lock()) for family in FAMILIES)
    _started.cache_clear()


@functools.cache
def lanes() -> int:
    """Returns the floats in a vector of the kernels, without building them."""
    return {"avx512": 16, "avx2": 8}.get(processor()[0], 4)


@functools.cache
def multiplies_in_tiles() -> bool:
    """Returns whether the blocked kernel multiplies large matrices in tiles (kernels/cpu/tiles.cpp)."""
    return lanes() == 16 and cpu_level() is None and has_tiles()


@functools.cache
def cache_bytes() -> int:
    """Returns the bytes of a core's L2 cache; 0 where the system does not tell."""
    file = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    text = file.read_text().strip() if file.exists() else ""
    return int(text[:-1]) << 10 if text.endswith("K") else 0


def _unit(text: str) -> Unit:
    file, *defined = text.split()
    flags = ("-O2", "-ffp-contract=fast", f"-DLANES={lanes()}", *(f"-D{name}" for name in defined))
    return Unit((FOLDER / f"{file}.cpp").read_text(), flags, FOLDER, keep=True)


def units_of(launchers: Iterable[str]) -> list[Unit]:
    """Returns the translation units of these functions, each once."""
    texts = dict.fromkeys(text for name in launchers for text in FAMILIES[FAMILY_OF[name]][0])
    return [_unit(text) for text in texts]


@functools.cache
def library(family: str) -> Library:
    """Returns the compiled family (built once per machine, then found in the cache)."""
    if family in _restored:
        return _restored[family]
    with _building[family]:  # the second thread finds it in the cache
        return build([_unit(text) for text in FAMILIES[family][0]], name=f"own_{family}")


@functools.cache
def function(launcher: str) -> Callable[..., None]:
    """Returns an exported function of native/*.cpp."""
    family = FAMILY_OF[launcher]
    return library(family).function(launcher, FAMILIES[family][1][launcher])


def address(launcher: str) -> int:
    """Returns the address of an exported function of native/*.cpp, which stays loaded."""
    result = library(FAMILY_OF[launcher])
    _addressed[result.key] = result
    return result.address(launcher)


def prepare(launchers: Iterable[str]) -> None:
    """Starts building the libraries of these launchers in the background, beside lowering and the
    compilation of the graph's native kernels."""
    for family in dict.fromkeys(FAMILY_OF[launcher] for launcher in launchers):
        _started(family)


@functools.cache
def _started(family: str) -> None:
    def work() -> None:
        # raised again, and then seen, where the library is used
        with contextlib.suppress(BackendError):
            library(family)

    name, run = f"inductor native kernels: {family}", contextvars.copy_context().run
    threading.Thread(target=run, args=(work,), name=name, daemon=True).start()


_new_process()
os.register_at_fork(after_in_child=_new_process)


def restore(binaries: dict[str, bytes]) -> None:
    """Loads stored ``library(family).read_binary()`` into this process: then no compiler is needed.

    Raises BackendError if the bytes are damaged or were built for another processor."""
    for family, data in binaries.items():
        _restored[family] = load_binary(data, name=f"own_{family}")
    library.cache_clear()
    function.cache_clear()
