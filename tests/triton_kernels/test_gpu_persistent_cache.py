"""On a real GPU: a second process trains a model with dropout and several results as the first one
did, without lowering it, also where it asks for gradients that no compiled graph computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = '''
    """program.py DTYPE MODE RESULTS COPY: COPY: where the folder of kept entries is copied to before any
    unusual gradient is computed, "" for nowhere."""
    import os, shutil, sys
    import torch
    import torch.nn.functional as F
    from torch import nn
    import tracer_core
    from tracer_core.execution.store import persistent_cache as kept

    device, dtype = os.environ.get("KEPT_DEVICE", "cuda"), getattr(torch, sys.argv[1])

    class Layer(nn.Module):
        def __init__(self, width=64, heads=4):
            super().__init__()
            self.heads = heads
            self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm, self.first, self.last = nn.LayerNorm(width), nn.Linear(width, 128), nn.Linear(128, width)

        def forward(self, x):
            split = [one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.inner(x).chunk(3, -1)]
            seen = F.scaled_dot_product_attention(*split, dropout_p=0.1 if self.training else 0.0)
            x = x + F.dropout(self.outer(seen.transpose(1, 2).flatten(2)), 0.1, self.training)
            return self.norm(x + F.dropout(self.last(F.gelu(self.first(x))), 0.2, self.training))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 64)
            self.layers = nn.Sequential(Layer(), Layer())
            self.head = nn.Linear(64, 50)

        def forward(self, tokens, labels):
            x = F.dropout(self.words(tokens), 0.1, self.training)
            logits = self.head(self.layers(x))
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    torch.manual_seed(0)
    net = Net().to(dtype).to(device)
    tokens, labels = (torch.randint(50, (4, 16)).to(device) for _ in range(2))
    fast = tracer_core.compile(net, mode=sys.argv[2])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    parameters = list(net.parameters())
    losses = []
    for step in range(6):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss, _ = fast(tokens, labels)
        loss.backward()
        losses.append(loss.detach().cpu())
        optimizer.step()
    kept.flush()
    if sys.argv[4]:
        shutil.copytree(os.environ["TRACER_CACHE_DIR"], sys.argv[4])

    def gradients(seed=9, second=False):
        torch.manual_seed(seed)
        loss, logits = fast(tokens, labels)
        if not second:
            found = torch.autograd.grad(logits.square().mean(), parameters, allow_unused=True)
        else:
            found = torch.autograd.grad(loss, parameters, create_graph=True)
        return found

    alone = gradients()
    found = {"losses": losses, "alone": [one.cpu() for one in alone]}
    if dtype is torch.float64:
        first = gradients(second=True)
        aim = [torch.ones_like(one) for one in first]
        product = torch.autograd.grad(first, parameters, aim)
        found["product"] = [one.cpu() for one in product]
        if sys.argv[4]:  # the same numbers are drawn again: a difference quotient tells the truth
            def moved(by):
                with torch.no_grad():
                    for one in parameters:
                        one += by
                torch.manual_seed(9)
                loss, _ = fast(tokens, labels)
                result = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for one in parameters:
                        one -= by
                return result
            pairs = zip(moved(1e-5), moved(-1e-5), strict=True)
            found["quotient"] = [((a - b) / 2e-5).cpu() for a, b in pairs]
    torch.save(found, sys.argv[3])
    rows = tracer_core.last_compile(fast)
    stored_rows = [row.text for row in rows if row.name == "persistent_cache"]
    print(*stored_rows, "| stages:", *sorted({row.name for row in rows}))
'''


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("float64", "default"), ("float32", "default"), ("float32", "reduce-overhead")],
)
def test_dropout_and_several_results(dtype, mode, tmp_path):
    lines = PROGRAM.splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join(line.removeprefix("    ") for line in lines))
    said, results = [], []
    for folder, copy in (("first", str(tmp_path / "second")), ("second", "")):
        results.append(tmp_path / f"{folder}.pt")
        done = subprocess.run(
            [sys.executable, str(program), dtype, mode, str(results[-1]), copy],
            capture_output=True,
            text=True,
            timeout=180,
            cwd=ROOT,
            env={
                **os.environ,
                "TRACER_KEEP": "1",
                "TRACER_CHECK": "",
                "TRACER_CACHE_DIR": str(tmp_path / folder),
            },
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout.splitlines()[-1])
    assert said[0].startswith("miss"), said
    assert said[1].startswith("hit"), said
    stages = said[1].partition("stages:")[2].split()
    assert not {"trace", "lower", "compile"} & set(stages), said
    item, other = map(torch.load, results)
    torch.testing.assert_close(other["losses"], item["losses"])
    near = {"rtol": 1e-6, "atol": 1e-9} if dtype == "float64" else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(other["alone"], item["alone"], **near)
    if dtype == "float64":
        torch.testing.assert_close(other["product"], item["product"], **near)
        torch.testing.assert_close(item["product"], item["quotient"], rtol=1e-4, atol=1e-5)
