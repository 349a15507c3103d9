"""A graph as a shared library of its own, loaded with ctypes."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from inductor_backend.plugin import BACKEND
from tests.support.frozen_graphs import frozen_graph
from tracer_core.contract.backend import resolve
from tracer_core.plugin_api import CompileSpec

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
#: As strict as a compiler gets, for what is generated.
C_FLAGS = ("-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-parameter")


def ran(embedding: list[str], folder: Path, env: dict[str, str] = ONE_THREAD) -> str:
    """What a program prints."""
    done = subprocess.run(
        embedding, cwd=folder, capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Library:
    """A library that was written into a folder, and its example program. order: which argument of
    the function each input is.
    """

    folder: Path
    order: list[int]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def about(self) -> dict[str, Any]:
        return json.loads((self.folder / f"{self.name}.json").read_text())

    def build(self, source: str, text: str) -> None:
        embedding = ["gcc", "-std=gnu11", *C_FLAGS, source, f"{self.name}.so"]
        ran([*embedding, "-Wl,-rpath,$ORIGIN", "-pthread", "-o", text], self.folder)

    def written(self, *inputs: torch.Tensor, to: str = "inputs") -> None:
        """Writes the arguments' memory as it lies."""
        with (self.folder / to).open("wb") as file:
            for number, item in zip(self.order, self.about["inputs"], strict=True):
                tensor = inputs[number]
                steps = zip(tensor.shape, tensor.stride(), strict=True)
                extent = 1 + sum((size - 1) * stride for size, stride in steps)
                assert item["bytes"] in (extent * tensor.itemsize, 0) or self.sizes(inputs)
                flat = tensor.as_strided((extent if tensor.numel() else 0,), (1,))
                file.write(bytes(flat.view(torch.uint8).numpy()))

    def sizes(self, inputs: tuple[torch.Tensor, ...]) -> dict[str, int]:
        """The sizes that the library takes, by name."""
        sources = [item["source"] for item in self.about["inputs"]]
        actual = {}
        for item in self.about["sizes"]:
            source, dim = re.fullmatch(r"(.*)\.shape\[(\d+)\]", item["source"]).groups()
            actual[item["name"]] = inputs[self.order[sources.index(source)]].shape[int(dim)]
        return actual

    def results(self, names: dict[str, int], file: str = "outputs") -> list[torch.Tensor]:
        def value(number: int | str) -> int:
            return eval(str(number), {}, names)

        data, found = bytearray((self.folder / file).read_bytes()), []
        for one in self.about["outputs"]:
            count = value(one["bytes"])
            flat = torch.tensor(data[:count], dtype=torch.uint8)
            flat = flat.view(getattr(torch, one["dtype"]))
            sizes, strides = (list(map(value, one[what])) for what in ("sizes", "strides"))
            found.append(flat.as_strided(sizes, strides).clone())
            del data[:count]
        assert not data
        return found

    def __call__(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        self.written(*inputs)
        env, names = {**os.environ, "OMP_NUM_THREADS": str(threads)}, self.sizes(inputs)
        ran(["./example", "inputs", "outputs", "0", *map(str, names.values())], self.folder, env)
        return self.results(names)


def library(fn: Any, *inputs: torch.Tensor, folder: Path) -> Library:
    """The library of ``fn(*inputs)``, its example built, and warnings are errors."""
    return written(fn, *frozen_graph(fn, *inputs), folder)


def written(fn: Any, gm: torch.fx.GraphModule, spec: CompileSpec, folder: Path) -> Library:
    resolve(BACKEND.write_library)(gm, spec, folder)
    full = isinstance(fn, nn.Module)
    names = list(inspect.signature(fn.forward if full else fn).parameters)
    names = [f"args[{number}]" for number in range(len(names))] if full else names
    library = Library(folder, [names.index(value.source) for value in spec.inputs])
    library.build("example.c", "example")
    return library


def close(ours: torch.Tensor, eager: torch.Tensor) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def like_eager(fn: Any, *inputs: torch.Tensor, folder: Path) -> Library:
    """A library whose results are eager's, with one thread and with two."""
    result = library(fn, *inputs, folder=folder)
    with torch.no_grad():
        eager = fn(*inputs)
    wanted = list(eager) if isinstance(eager, (tuple, list)) else [eager]
    for threads in (1, 2):
        ours = result(*inputs, threads=threads)
        assert len(ours) == len(wanted)
        for item, other in zip(ours, wanted, strict=True):
            close(item, other)
    return result


class Embeddings(nn.Module):
    """An embedding, and a layer of a transformer with a mask."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(100, width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)
        self.head.weight = self.table.weight

    def forward(self, ids, seen):
        x = self.table(ids)
        heads = self.inner(x).view(*ids.shape, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mask = torch.where(seen, 0.0, -torch.inf)[:, None, None, :]
        y = F.scaled_dot_product_attention(*heads.unbind(0), attn_mask=mask)
        x = self.norm(x + self.outer(y.transpose(1, 2).flatten(2)))
        return self.head(F.gelu(x)).softmax(-1)


GUARDED = """
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "NAME.h"

/* memory that ends where a page begins which nothing may touch */
static void *guarded(size_t bytes) {
    const size_t page = 4096, size = (bytes + page - 1) / page * page;
    char *start = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(start + size, page, PROT_NONE);
    return start + size - bytes;
}

int main(void) {
    NAME_context *context;
    NAME_inputs inputs = {0};
    NAME_outputs outputs = {0};
FILLED
    return NAME_open(&context) || NAME_run(context, &inputs, &outputs);
}
"""


def stays_inside(library: Library, ones: str) -> None:
    """Runs a library on memory that ends at a page that nothing may touch. ones: inputs of ones."""
    filled = []
    for what in ("inputs", "outputs"):
        for item in library.about[what]:
            place = f"{what}.{item['name']}"
            filled.append(f"    {place} = guarded({item['bytes']});")
            if item["source"] in ones.split():
                filled.append(f"    memset((void *){place}, 1, {item['bytes']});")
    text = GUARDED.replace("FILLED", "\n".join(filled)).replace("NAME", library.name)
    (library.folder / "guarded.c").write_text(text)
    library.build("guarded.c", "guarded")
    ran(["./guarded"], library.folder)
