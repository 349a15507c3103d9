"""Graphs of many kinds as shared libraries: results, matrix products, convolutions, loops, sizes."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import selection
from tests.support.frozen_graphs import frozen_graph
from tests.support.native_libraries import (
    Embeddings,
    close,
    library,
    like_eager,
    ran,
    stays_inside,
    written,
)
from tracer_core.torch_private.releases import is_before

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def several(x, scale):
    """Results of several dtypes and layouts, a constant, and an empty one."""
    y = x.double() * 2
    shifted = x.t() + 1
    return (
        shifted, y.sum(), y > 1, torch.arange(4) * 3, (x * 2)[:, :0], x.half() * 2, x.bfloat16() * 3,
        torch.stack([x, x * scale]).transpose(0, 2) * 1, x.int(), (shifted * 2)[1:, ::2] + 0,
    )  # fmt: skip


def test_results_of_all_kinds(tmp_path) -> None:
    x = torch.randn(4, 6).t()
    result = library(several, x, torch.tensor(3), folder=tmp_path / "several")
    for inputs in ((x, torch.tensor(3)), (torch.randn(4, 6).t(), torch.tensor(-2))):
        for ours, eager in zip(result(*inputs), several(*inputs), strict=True):
            assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
            close(ours, eager)


def test_results_that_lie_elsewhere(tmp_path) -> None:
    """An input, a weight, and parts of a tensor are copied to the caller's memory."""
    layer = nn.Linear(3, 4)

    def parts(x):
        first, second = (layer(x) * 2).split(2, 1)
        return first, second.t()

    x = torch.randn(5, 3)
    gm, spec = frozen_graph(parts, x)
    (output,) = gm.graph.find_nodes(op="output")
    weight = gm.graph.find_nodes(op="get_attr")[0]
    (inputs,) = gm.graph.find_nodes(op="placeholder")
    output.args = ((*output.args[0], inputs, weight, weight),)
    gm.recompile()
    result = written(parts, gm, spec, tmp_path / "parts")
    eager = gm(x)
    ours = result(x)
    assert len(ours) == len(eager) >= 4
    for item, other in zip(ours, eager, strict=True):
        assert item.is_contiguous()
        close(item, other)


class Matmuls(nn.Module):
    """Products and convolutions for which the Python module would call ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.gate = nn.Conv1d(6, 8, 3, padding=2, stride=2), nn.Conv2d(1, 4, 3)
        self.layers = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x, y, z):
        scaled = torch.addmm(y[0], x[0], z[0], beta=0.5, alpha=2)
        batch = torch.baddbmm(y, x, z, beta=3)
        lines = self.lines(x).transpose(1, 2)
        image = F.conv2d(x[None], z[None, :4, :5, :6].expand(3, -1, -1, -1)[:, :, :2] * 1.0)
        scores = (x @ z).softmax(-1) @ y
        long = F.scaled_dot_product_attention(*(x.repeat(1, 100, 9)[None] for _ in range(3)))
        return (
            scaled,
            batch,
            self.layers(lines)[0],
            scores,
            self.gate(y[:, None]),
            long[..., :3],
            image,
        )


def test_products_that_are_no_kernel_of_ours_elsewhere(tmp_path) -> None:
    torch.manual_seed(0)
    x, y, z = torch.randn(4, 6, 20), torch.randn(4, 6, 6), torch.randn(4, 20, 6)
    stays_inside(like_eager(Matmuls().eval(), x, y, z, folder=tmp_path / "products"), ones="")


class Windows(nn.Module):
    """Transposed convolutions, and groups of few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(
            8, 6, (3, 2), (2, 3), (1, 0), (1, 2), groups=2, dilation=(2, 1)
        )
        self.line, self.crop = nn.ConvTranspose1d(6, 4, 4, 2, 1), nn.ConvTranspose2d(6, 5, 1, 2, 2)
        self.groups, self.deep = nn.Conv2d(8, 12, 3, groups=4), nn.Conv2d(8, 8, (2, 9), groups=8)

    def forward(self, x, filters):
        up = self.up(x)
        turned = F.conv_transpose2d(x, filters, stride=2, bias=None)
        return up, self.line(up[:, :, 2]), self.crop(up), self.groups(x), self.deep(x), turned


def test_convolutions_of_all_kinds(tmp_path) -> None:
    torch.manual_seed(0)
    x, filters = torch.randn(2, 8, 5, 11), torch.randn(8, 3, 2, 3)
    stays_inside(like_eager(Windows().eval(), x, filters, folder=tmp_path / "windows"), ones="")


def test_products_of_other_dtypes(tmp_path) -> None:
    def matmuls(x, y, bias):
        wide, counts = x.double(), (y * 9).long()
        low = torch.addmm(bias.bfloat16(), x.bfloat16(), y.bfloat16())
        return (
            torch.addmm(bias.double(), wide, y.double(), alpha=2), counts.t() @ counts, low,
            (x * 2e9).int() @ (y * 9).int(), (x * 50).to(torch.int8) @ (y * 50).to(torch.int8),
            torch.stack([wide, wide + 1]) @ torch.stack([y, y]).double(),
        )  # fmt: skip

    x, y, bias = torch.randn(7, 12), torch.randn(12, 5), torch.randn(5)
    result = library(matmuls, x, y, bias, folder=tmp_path / "products")
    for ours, eager in zip(result(x, y, bias), matmuls(x, y, bias), strict=True):
        torch.testing.assert_close(ours, eager)


def test_a_query_and_its_cache(tmp_path, monkeypatch) -> None:
    """Attention of one query over keys in bfloat16 that four heads share, and experts' matmuls."""
    monkeypatch.setattr(selection, "multiplies_16_bits", lambda dtype: False)

    def token(query, keys, values, shown, x, experts, ends):
        heads = [x[:, :, None].expand(1, 2, 4, 300, 64).flatten(1, 2) for x in (keys, values)]
        attended = F.scaled_dot_product_attention(query, *heads, shown)
        return attended, torch._grouped_mm(x, experts, offs=ends)

    cache = [torch.randn(1, 2, 300, 64).bfloat16() for _ in range(2)]
    shown = (torch.arange(300) < 280)[None, None, None]
    experts, ends = torch.randn(3, 64, 40).bfloat16(), torch.tensor([2, 2, 5], dtype=torch.int32)
    inputs = torch.randn(1, 8, 1, 64).bfloat16(), *cache, shown, torch.randn(5, 64).bfloat16()
    result = library(token, *inputs, experts, ends, folder=tmp_path / "token")
    for ours, eager in zip(
        result(*inputs, experts, ends), token(*inputs, experts, ends), strict=True
    ):
        torch.testing.assert_close(ours, eager, atol=0.05, rtol=0.02)


class Steps(nn.Module):
    """A scan with a cell, after a while_loop: both are loops in C++."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 8)

    def forward(self, rows, ids):
        def step(h, row):
            h = self.cell(row, h)
            return h, h * 2

        (count, start), first = (
            while_loop(
                lambda n, h: n < 5,
                lambda n, h: (n + 1, h * 0.5 + n),
                (ids.sum(), rows[0, :, :1] * 0),
            ),
            self.cell.weight_hh[ids],
        )
        last, every = scan(step, start.repeat(1, 8) + first, rows)
        return last, every, count


def scan(step, h, rows):
    if tracer_core.is_compiling():
        from torch._higher_order_ops import scan as torch_scan

        return torch_scan(step, h, rows)
    parts = []
    for row in rows:
        h, part = step(h, row)
        parts.append(part)
    return h, torch.stack(parts)


def while_loop(more, step, state):
    if tracer_core.is_compiling():
        from torch._higher_order_ops import while_loop as torch_loop

        return torch_loop(more, step, state)
    while more(*state):
        state = step(*state)
    return state


@pytest.mark.skipif(is_before("2.13"), reason="a scan breaks the graph before torch 2.13")
def test_loops(tmp_path) -> None:
    torch.manual_seed(0)
    rows, ids = torch.randn(7, 3, 6), torch.tensor([1, 0, 2])
    native = like_eager(Steps().eval(), rows, ids, folder=tmp_path / "steps")
    native.written(rows, torch.tensor([1, 0, 24]))
    done = subprocess.run(
        ["./example", "inputs", "outputs"], cwd=native.folder, capture_output=True, text=True
    )
    assert done.stderr == "steps_run: index out of range in self\n"


def test_sizes_that_the_caller_gives(tmp_path) -> None:
    """A batch and a length, within the ranges and conditions of the captured graph."""
    torch.manual_seed(0)
    model = Embeddings().eval()

    def inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        seen = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
        return torch.randint(0, 100, (batch, length)), seen

    first = inputs(3, 24)
    for one in first:
        tracer_core.mark_dynamic(one, 0, min=2, max=40)
        tracer_core.mark_dynamic(one, 1, min=2, max=100)
    native = library(model, *first, folder=tmp_path / "sized")
    assert [(item["least"], item["most"]) for item in native.about["sizes"]] == [(2, 40), (2, 100)]
    with torch.no_grad():
        for batch, length in ((3, 24), (2, 2), (40, 7), (5, 100), (2, 33)):
            given = inputs(batch, length)
            for threads in (1, 2):
                (ours,) = native(*given, threads=threads)
                close(ours, model(*given))
    wrong = native.about["errors"]["SIZED_BAD_SIZE"]
    native.written(*inputs(2, 2))
    (native.folder / "wrong.c").write_text("""
#include <stdio.h>
#include "sized.h"
int main(void) {
    static int64_t ids[1 << 14];
    static uint8_t seen[1 << 14];
    static float result[1 << 21];
    sized_context *context;
    const sized_outputs outputs = {result};
    sized_inputs inputs = {SIZES, ids, seen};
    if (sized_open(&context)) return 1;
    const int64_t sizes[][2] = {{3, 100}, {1, 5}, {41, 5}, {-3, 5}, {4, 1}, {4, 101}, {40, 5}};
    for (int k = 0; k < 7; ++k) {
        inputs.FIRST = sizes[k][0];
        inputs.SECOND = sizes[k][1];
        printf("%d ", sized_run(context, &inputs, &outputs));
    }
    printf("%lld", (long long)sized_output_0_bytes(&inputs));
    sized_close(context);
    return 0;
}
""".replace("SIZES", "0, 0").replace("FIRST", native.about["sizes"][0]["name"])
    .replace("SECOND", native.about["sizes"][1]["name"]))  # fmt: skip
    native.build("wrong.c", "wrong")
    wanted = [0, wrong, wrong, wrong, wrong, wrong, 0, 40 * 5 * 100 * 4]
    assert ran(["./wrong"], native.folder).split() == list(map(str, wanted))


def test_equal_layers_have_their_own_weights(tmp_path) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
            self.norm = nn.LayerNorm(32)

        def forward(self, x):
            return self.norm(x + self.down(nn.functional.gelu(self.up(x))))

    torch.manual_seed(0)
    like_eager(
        nn.Sequential(*(Layer() for _ in range(8))).eval(),
        torch.randn(40, 32),
        folder=tmp_path / "m",
    )
