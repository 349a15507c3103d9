"""Graphs as plain shared libraries: what a C program computes with one is what eager computes."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.ir.nodes import BufferLayout
from inductor_backend.kernels import native
from inductor_backend.native_library import writer
from inductor_backend.native_library.interface import C_TYPES, Parameter, identifier
from inductor_backend.plugin import BACKEND
from tests.support.frozen_graphs import frozen_graph
from tests.support.native_libraries import (
    Embeddings,
    Library,
    close,
    library,
    like_eager,
    ran,
    stays_inside,
)
from tracer_core.contract.backend import resolve
from tracer_core.errors import PackageError
from tracer_core.plugin_api import BackendError

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


class Images(nn.Module):
    """Convolutions with batch norm, pools, a residual, a layer for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 5, 2, 2, bias=False), nn.BatchNorm2d(32)
        self.wide, self.point = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 24, 1)
        self.last = nn.Linear(24, 10)
        self.norm.running_mean.normal_(0, 0.2)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, images):
        x = F.max_pool2d(self.norm(self.stem(images)).relu(), 3, 2, 1)
        x = self.point(F.silu(self.wide(x)) + x)
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.fixture(scope="module")
def embedding(tmp_path_factory) -> Library:
    torch.manual_seed(0)
    ids, seen = torch.randint(0, 100, (3, 24)), torch.arange(24) < torch.tensor([[24], [11], [1]])
    return like_eager(Embeddings().eval(), ids, seen, folder=tmp_path_factory.mktemp("w") / "words")


def test_a_model_of_images(tmp_path) -> None:
    torch.manual_seed(0)
    model = Images().eval()
    standalone = like_eager(model, torch.randn(2, 3, 30, 34), folder=tmp_path / "images")
    other = torch.randn(2, 3, 30, 34) * 5
    with torch.no_grad():
        close(standalone(other)[0], model(other))
    stays_inside(standalone, ones="")
    weights = sum(item.numel() for item in model.state_dict().values()) * 4
    assert weights / 2 < standalone.about["weight_bytes"] < 2 * weights


def test_it_needs_neither_python_nor_torch(embedding) -> None:
    actual = ran(["ldd", f"{embedding.name}.so"], embedding.folder)
    names = {line.split()[0].rpartition("/")[2].partition(".so")[0] for line in actual.splitlines()}
    assert names <= {"linux-vdso", "libgomp", "libc", "libm", "libpthread", "ld-linux-x86-64",
                     "ld-linux-aarch64"}  # fmt: skip
    symbols = ran(["nm", "-D", f"{embedding.name}.so"], embedding.folder)
    assert not re.search(r"\bPy|_Py|torch|N3c10|_ZN2at", symbols)
    exported = re.findall(r" [TDBRVWu] (\w+)$", symbols, re.MULTILINE)
    assert sorted(exported) == [f"words_{what}" for what in ("close", "error", "open", "run")]


def test_the_description(embedding) -> None:
    ids, seen = embedding.about["inputs"]
    assert (ids["dtype"], ids["sizes"], ids["bytes"]) == ("int64", [3, 24], 3 * 24 * 8)
    assert (seen["dtype"], seen["strides"], seen["bytes"]) == ("bool", [24, 1], 3 * 24)
    assert [item["sizes"] for item in embedding.about["outputs"]] == [[3, 24, 100]]
    # the table is kept once, for the embedding and the head's packed copy
    assert embedding.about["weight_bytes"] < 4 * (2 * 100 * 32 + 5 * 32 * 32 + 2000)


def test_an_index_out_of_range_is_an_error(embedding) -> None:
    seen = torch.ones(3, 24, dtype=torch.bool)
    for wrong in (100, -101, 2**62):
        embedding.written(torch.full((3, 24), wrong), seen)
        done = subprocess.run(
            ["./example", "inputs", "outputs"], cwd=embedding.folder, capture_output=True, text=True
        )
        assert done.returncode == 10 + embedding.about["errors"]["WORDS_BAD_INDEX"]
        assert done.stderr == "words_run: index out of range in self\n"


THREADS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "words.h"

static int64_t good[3 * 24], bad[3 * 24];
static uint8_t seen[3 * 24];
static float wanted[3 * 24 * 100];

/* every run of the one kind has to fail, and none of the other */
static void *many(void *given) {
    const int64_t *ids = given;
    float *found = malloc(sizeof wanted);
    words_context *context;
    long wrong = words_open(&context) != WORDS_OK;
    const words_inputs inputs = {INPUTS};
    const words_outputs outputs = {found};
    for (int k = 0; k < 300; ++k) {
        const int code = words_run(context, &inputs, &outputs);
        wrong += code != (ids == bad ? WORDS_BAD_INDEX : WORDS_OK);
        if (ids == good)
            for (int i = 0; i < 3 * 24 * 100; ++i) wrong += found[i] != wanted[i];
    }
    words_close(context);
    free(found);
    return (void *)wrong;
}

int main(void) {
    for (int i = 0; i < 3 * 24; ++i) {
        good[i] = i;
        bad[i] = i == 70 ? 100 : i;
        seen[i] = 1;
    }
    words_context *context;
    const int64_t *ids = good;
    const words_inputs inputs = {INPUTS};
    const words_outputs outputs = {wanted};
    if (words_open(&context) || words_run(context, &inputs, &outputs)) return 1;
    words_close(context);
    words_close(NULL);
    pthread_t threads[4];
    for (int t = 0; t < 4; ++t) pthread_create(&threads[t], NULL, many, t % 2 ? bad : good);
    long wrong = 0;
    for (int t = 0; t < 4; ++t) {
        void *one;
        pthread_join(threads[t], &one);
        wrong += (long)one;
    }
    printf("%ld\\n", wrong);
    return 0;
}
"""


def test_threads_with_contexts_of_their_own(embedding) -> None:
    """A run never takes another's failure for its own."""
    (embedding.folder / "threads.c").write_text(THREADS.replace("INPUTS", "ids, seen"))
    embedding.build("threads.c", "threads")
    assert ran(["./threads"], embedding.folder) == "0\n"
    assert ran(["./threads"], embedding.folder, {**os.environ, "OMP_NUM_THREADS": "2"}) == "0\n"


def test_null_pointers_are_errors(embedding) -> None:
    (embedding.folder / "null.c").write_text("""
#include <stdio.h>
#include "words.h"
int main(void) {
    words_context *context;
    words_inputs inputs = {0};
    words_outputs outputs = {0};
    printf("%d ", words_open(0));
    printf("%d ", words_open(&context));
    printf("%d ", words_run(context, &inputs, &outputs));
    printf("%d ", words_run(0, &inputs, &outputs));
    printf("%s, %s", words_error(words_run(context, 0, 0)), words_error(-1));
    words_close(context);
    return 0;
}
""")
    embedding.build("null.c", "null")
    null = embedding.about["errors"]["WORDS_NULL_POINTER"]
    printed = ran(["./null"], embedding.folder)
    assert printed == f"{null} 0 {null} {null} a pointer is null, an unknown code"


def test_nothing_beyond_a_tensor_is_touched(embedding) -> None:
    stays_inside(embedding, ones="args[1]")


def test_a_compiler_without_openmp(tmp_path, monkeypatch) -> None:
    """Kernels run on one thread then, and nothing of OpenMP is linked."""
    tools = writer.find_compiler()
    flags = tuple("-fopenmp-simd" if flag == "-fopenmp" else flag for flag in tools.flags)
    monkeypatch.setattr(writer, "find_compiler", lambda: replace(tools, flags=flags))
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 9)).eval()
    standalone = like_eager(model, torch.randn(7, 20), folder=tmp_path / "alone")
    assert not standalone.about["openmp"]
    assert "gomp" not in ran(["ldd", "alone.so"], standalone.folder)


def test_two_libraries_in_one_process(embedding, tmp_path) -> None:
    """What they have in common by name is each one's own."""
    result = library(lambda x: F.gelu(x) @ x.t(), torch.randn(24, 24), folder=tmp_path / "other")
    (embedding.folder / "both.c").write_text(
        '#include <stdio.h>\n#include "words.h"\n#include "other.h"\n'
        "static int64_t ids[72]; static uint8_t seen[72]; static float x[576], y[576], z[7200];\n"
        """int main(void) {
    words_context *first;
    other_context *second;
    const words_inputs inputs = {ids, seen};
    const words_outputs outputs = {z};
    const other_inputs xs = {x};
    const other_outputs ys = {y};
    for (int i = 0; i < 72; ++i) seen[i] = 1;
    for (int i = 0; i < 576; ++i) x[i] = i == 0 ? 2 : 0;
    if (words_open(&first) || other_open(&second)) return 1;
    if (words_run(first, &inputs, &outputs) || other_run(second, &xs, &ys)) return 2;
    float sum = 0;
    for (int i = 0; i < 100; ++i) sum += z[i];
    printf("%.4f %.4f", sum, y[0]);
    ids[3] = 100;
    if (words_run(first, &inputs, &outputs) != WORDS_BAD_INDEX) return 3;
    return other_run(second, &xs, &ys);
}
"""
    )
    words_h = [
        "-I",
        str(result.folder),
        str(result.folder / "other.so"),
        f"-Wl,-rpath,{result.folder}",
    ]
    ran(["g++", "-x", "c++", "both.c", "-x", "none", "words.so", *words_h, "-Wl,-rpath,$ORIGIN",
         "-o", "both"], embedding.folder)  # fmt: skip
    assert ran(["./both"], embedding.folder) == f"1.0000 {2 * F.gelu(torch.tensor(2.0)):.4f}"


def test_a_library_of_the_core(tmp_path) -> None:
    """`package_library` takes marks, names inputs as the program does, and size 1 where it may."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5)).eval()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, rows, *, scale):
            return {"all": self.layers(rows) * scale, "last": rows[-1]}

    model, rows, scale = Scaled(), torch.randn(7, 20), torch.tensor(3.0)
    tracer_core.mark_dynamic(rows, 0, min=1, max=64)
    with pytest.raises(PackageError, match="returns a view of an input"):
        tracer_core.package_library(model, (rows,), tmp_path / "x", kwargs={"scale": scale})
    model.forward = lambda rows, *, scale: {"all": layers(rows) * scale, "last": rows[-1] * 1}
    standalone = Library(tmp_path / "scaled", [0, 1])
    tracer_core.package_library(model, (rows,), standalone.folder, kwargs={"scale": scale})
    standalone.build("example.c", "example")
    assert [item["source"] for item in standalone.about["inputs"]] == ["rows", "scale"]
    for count in (7, 1, 64, 2):
        rows = torch.randn(count, 20)
        with torch.no_grad():
            ours, wanted = standalone(rows, scale), model(rows, scale=scale)
        for one, other in zip(ours, wanted.values(), strict=True):
            close(one, other)


def test_conditions_on_sizes(tmp_path) -> None:
    """What the program decided by a size holds in every run."""

    def halves(x, y):
        first, second = x.view(2, -1, x.shape[1]).unbind(0)
        return (first - second) @ y if x.shape[0] < 3 * x.shape[1] else first @ y

    x, y = torch.randn(12, 6), torch.randn(6, 5)
    tracer_core.mark_dynamic(x, 0)
    tracer_core.mark_dynamic(x, 1)
    tracer_core.mark_dynamic(y, 0)
    result = library(halves, x, y, folder=tmp_path / "halves")
    for rows, columns in ((12, 6), (4, 9), (16, 6)):
        inputs = torch.randn(rows, columns), torch.randn(columns, 5)
        close(result(*inputs)[0], halves(*inputs))
    for rows, columns in ((18, 6), (11, 6)):
        result.written(torch.randn(rows, columns), torch.randn(columns, 5))
        embedding = ["./example", "inputs", "outputs", "0", str(rows), str(columns)]
        done = subprocess.run(embedding, cwd=result.folder, capture_output=True, text=True)
        assert done.stderr == "halves_run: a size is none that the library was built for\n"

    first, second = (item["name"] for item in result.about["sizes"])
    members = "".join(f".{item['name']} = one, " for item in result.about["inputs"])
    (result.folder / "huge.c").write_text(f"""
#include "halves.h"
int main(void) {{
    static float one[1];
    halves_context *context;
    const halves_outputs outputs = {{one}};
    const halves_inputs inputs = {{{members}.{first} = 1LL << 40, .{second} = 1LL << 40}};
    if (halves_open(&context)) return 1;
    const int code = halves_run(context, &inputs, &outputs);
    halves_close(context);
    return code != HALVES_BAD_SIZE;
}}
""")
    result.build("huge.c", "huge")
    ran(["./huge"], result.folder)


def refused(fn: Any, *inputs: torch.Tensor, folder: Path) -> str:
    """Why there is no library; nothing is left behind."""
    gm, spec = frozen_graph(fn, *inputs)
    with pytest.raises(BackendError) as error:
        resolve(BACKEND.write_library)(gm, spec, folder)
    assert not folder.exists()
    return str(error.value)


def test_what_prevents_it_is_named(tmp_path) -> None:
    def sorted_twice(x):
        first = x.sort().values
        return first + x.sort(descending=True).values + x.topk(4).values

    reason = refused(sorted_twice, torch.rand(4, 4), folder=tmp_path / "x")
    assert re.search(r"aten\.topk\.default, 1 of them: \S*test_native_library.py:\d+", reason)
    assert re.search(r"aten\.sort\S*, 2 of them: \S*:\d+ in sorted_twice, ", reason)

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    assert "writes to self.calls" in refused(Counts(), torch.ones(3), folder=tmp_path / "x")
    assert "writes to" in refused(lambda x: x.add_(1), torch.ones(3), folder=tmp_path / "x")
    complex_numbers = torch.ones(2, dtype=torch.complex64)
    reason = refused(lambda x: torch.view_as_real(x) + 1, complex_numbers, folder=tmp_path / "x")
    assert "aten.view_as_real.default" in reason and "test_native_library.py" in reason
    with pytest.raises(BackendError, match="x: C has no type for torch.complex64"):
        Parameter("x", "x", torch.complex64, BufferLayout((2,), (1,)), "x")


def test_own_kernels_share_no_names() -> None:
    """The linker keeps one of several inline functions of the same name, whatever they compute."""
    for path in native.FOLDER.glob("*.cpp"):
        text = path.read_text()
        for struct in re.findall(
            r"^struct \w+ \{(?![^\n]*\};).*?^\};", text, re.MULTILINE | re.DOTALL
        ):
            alone = f"namespace {{\n{struct}\n}}" in text
            assert alone or not re.search(r"\)( const)? \{", struct), (path.name, struct[:60])
        for line in re.findall(r"^template <.*>\n(.*)", text, re.MULTILINE):
            assert line.startswith(("static ", "INLINE ")), (path.name, line)


def test_names_in_c() -> None:
    assert identifier("args[0].x") == "args_0_x"
    assert identifier("self.größe") == "self_gr_e"
    assert identifier("class") == "class_" and identifier("errno") == "errno_"
    assert identifier("2", prefix="input") == "input_2"
    assert identifier("X", {"x"}) == "X_2" and identifier("x", {"x", "X_2"}) == "x_3"
    assert set(C_TYPES.values()) >= {"float", "int64_t", "uint8_t"}


def model_of(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """resnet18, or BERT-base with a mask, for a batch."""
    kind, batch = name.split("-")
    if kind == "resnet18":
        models = pytest.importorskip("torchvision.models")
        return models.resnet18().eval(), (torch.randn(int(batch), 3, 224, 224),)
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(attn_implementation="sdpa")
    bert = transformers.BertModel(config).eval()

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids, mask):
            actual = self.bert(input_ids=ids, attention_mask=mask)
            return actual.last_hidden_state, actual.pooler_output

    ids = torch.randint(0, config.vocab_size, (int(batch), 128))
    mask = (torch.arange(128) < torch.randint(1, 129, (int(batch), 1))).long()
    return Encoder().eval(), (ids, mask)


@pytest.mark.full
@pytest.mark.parametrize("name", ["resnet18-1", "resnet18-8", "bert-1", "bert-8"])
def test_real_models_need_nothing_else(name, tmp_path) -> None:
    torch.manual_seed(0)
    model, inputs = model_of(name)
    like_eager(model, *inputs, folder=tmp_path / "model")
